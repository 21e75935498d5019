"""The Jinja environment that chat templates run in.

Knows what templates of published models expect to find, as transformers gives it to them, and what they may not touch:
a template comes with the model, from anywhere, and is treated as hostile. Does not know messages or models (`chat`).

Imports Jinja, so import this only where a template is compiled.
"""

from __future__ import annotations

import json
from datetime import datetime
from typing import Any, NoReturn

import jinja2
import jinja2.ext
from jinja2 import nodes
from jinja2.exceptions import SecurityError
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace

from .errors import ChatTemplateError


def chat_environment() -> jinja2.Environment:
    """A fresh sandbox with the filters and functions chat templates use."""
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, jinja2.ext.loopcontrols]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _strftime_now
    # The built-in ones are real Python classes, with attributes that lead out of the sandbox.
    environment.globals["dict"] = _DictMaker()
    environment.globals["namespace"] = _PlainNamespace
    return environment


def takes_parts(environment: jinja2.Environment, source: str) -> tuple[bool, bool]:
    """Read from a template what it does with a message's content.

    Returns:
        Whether it goes through content part by part, and whether it also asks if content is a string.
    """
    tree = environment.parse(source)
    names = {"content"}
    names |= {
        assign.target.name
        for assign in tree.find_all(nodes.Assign)
        if isinstance(assign.target, nodes.Name) and _is_content(assign.node, names)
    }
    loops = any(_is_content(loop.iter, names) for loop in tree.find_all(nodes.For))
    asks = any(test.name == "string" for test in tree.find_all(nodes.Test))
    return loops, asks


def strings_looked_for(environment: jinja2.Environment, source: str) -> frozenset[str]:
    """Strings that a template compares with, or gives to methods (`split`, `startswith`) and filters."""
    tree = environment.parse(source)
    places: list[nodes.Node] = [*tree.find_all(nodes.Compare)]
    places += [node for call in tree.find_all(nodes.Call) if isinstance(call.node, nodes.Getattr) for node in call.args]
    places += [node for one in tree.find_all(nodes.Filter) for node in one.args]
    found = {place.value for place in places if isinstance(place, nodes.Const)}
    found |= {const.value for place in places for const in place.find_all(nodes.Const)}
    return frozenset(value for value in found if isinstance(value, str))


def _is_content(node: nodes.Node | None, names: set[str]) -> bool:
    while isinstance(node, nodes.Filter):  # as in `content | selectattr(...)`
        node = node.node
    if isinstance(node, nodes.Getattr):
        return node.attr == "content"
    if isinstance(node, nodes.Getitem):
        return isinstance(node.arg, nodes.Const) and node.arg.value == "content"
    return isinstance(node, nodes.Name) and node.name in names


class _Generation(jinja2.ext.Extension):
    """`{% generation %}…{% endgeneration %}` marks the assistant's words for training; to render, it is its body."""

    tags = {"generation"}  # noqa: RUF012 — Jinja declares it as an attribute of the instance

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body, lineno=line)


class _DictMaker:
    def __call__(self, *args: Any, **kwargs: Any) -> dict[Any, Any]:
        return dict(*args, **kwargs)

    def fromkeys(self, *args: Any) -> dict[Any, Any]:
        return dict.fromkeys(*args)


class _PlainNamespace(Namespace):
    """Jinja's namespace without underscore names, which reach into the interpreter."""

    def __init__(*args: Any, **kwargs: Any) -> None:  # no named self: a template may set `self`
        self, *rest = args
        attributes = dict(*rest, **kwargs)
        for name in attributes:
            _refuse_underscore(name)
        Namespace.__init__(self, attributes)

    def __setitem__(self, name: str, value: Any) -> None:
        _refuse_underscore(name)
        super().__setitem__(name, value)


def _refuse_underscore(name: object) -> None:
    if isinstance(name, str) and name.startswith("_"):
        raise SecurityError(f"a namespace may not hold {name!r}, which begins with an underscore")


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    # Jinja's own filter escapes HTML characters, which models have never seen in training.
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _strftime_now(format: str) -> str:
    return datetime.now().strftime(format)


def _raise_exception(message: object) -> NoReturn:
    raise ChatTemplateError(f"The model's chat template refuses these messages: {message}")
