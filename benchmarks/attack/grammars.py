"""Attacks by what an answer must be like: grammars that are deep, large, slow to compile or slow to follow.

Each visit has a grammar of its own, so that none is found compiled.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from benchmarks.attack.kind import Attack
from benchmarks.attack.visit import Visit
from benchmarks.attack.wire import post, text

_COMPLETION, _CHAT = "/v1/completions", "/v1/chat/completions"
_AMBIGUOUS = 'start: "{}" s\ns: s s s | s s | "a" | "b" | ""'

Make = Callable[[int], dict[str, Any]]


def _referring(depth: int, step: Callable[[dict[str, str]], dict[str, Any]], number: int) -> dict[str, Any]:
    """Schemas each of which refers to the next; `step`: one of them, of the reference."""
    steps = {f"a{place}": step({"$ref": f"#/$defs/a{place + 1}"}) for place in range(depth)}
    last = {f"a{depth}": {"const": number}}
    return _schema({"$ref": "#/$defs/a0", "$defs": {**steps, **last}})


def _schema(schema: dict[str, Any]) -> dict[str, Any]:
    return {"structured_outputs": {"json": schema}}


def _grammar(source: str) -> dict[str, Any]:
    return {"structured_outputs": {"grammar": source}}


def _rules(depth: int, number: int, first: str, between: str) -> dict[str, Any]:
    """Rules each of which is the next: Lark, or GBNF."""
    rules = "\n".join(f"r{place}{between} r{place + 1}" for place in range(depth))
    return _grammar(f'{first}{between} r0\n{rules}\nr{depth}{between} "{number}"')


def _tool(number: int) -> dict[str, Any]:
    """A strict tool whose arguments refer to each other deeply."""
    schema = _referring(1500, lambda other: {"type": "object", "properties": {"x": other}}, number)
    parameters = {"type": "object", "properties": {"a": schema["structured_outputs"]["json"]}}
    tool = {"type": "function", "function": {"name": "f", "strict": True, "parameters": parameters}}
    return {"messages": [{"role": "user", "content": "x"}], "tools": [tool], "tool_choice": "required"}


_GRAMMARS: dict[str, tuple[str, Make]] = {
    "choices that refer": (
        "1,900 anyOf, each of which refers to the next",
        lambda n: _referring(1900, lambda other: {"anyOf": [other, {"type": "null"}]}, n),
    ),
    "references": ("3,500 $ref, each to the next", lambda n: _referring(3500, lambda other: other, n)),
    "objects that refer": (
        "1,500 objects within one another, by $ref",
        lambda n: _referring(1500, lambda other: {"type": "object", "properties": {"x": other}}, n),
    ),
    "rules": ("3,000 rules of Lark, each of which is the next", lambda n: _rules(3000, n, "start", ":")),
    "rules of GBNF": ("3,000 rules of GBNF, each of which is the next", lambda n: _rules(3000, n, "root", " ::=")),
    "multiples": (
        "integers that are multiples of a large number",
        lambda n: _grammar(f'start: %json {{"type": "integer", "multipleOf": {49999 + 2 * n}}}'),
    ),
    "patterns of properties": (
        "300 patternProperties",
        lambda n: _schema(
            {"type": "object", "patternProperties": {f"^p{n}x{one}[a-z]+$": {"type": "integer"} for one in range(300)}}
        ),
    ),
    "properties": (
        "3,000 properties",
        lambda n: _schema({"type": "object", "properties": {f"p{n}x{one}": {} for one in range(3000)}}),
    ),
    "repetitions": (
        "a regular expression of a million states",
        lambda n: {"guided_regex": f"(({n}a{{1,99}}b){{1,99}})+"},
    ),
    "ambiguous rules": (
        "400 tokens of a grammar whose masks take longer with each token",
        lambda n: {**_grammar(_AMBIGUOUS.format(n)), "max_tokens": 400, "temperature": 1.5, "ignore_eos": True},
    ),
}


def _body(path: str, make: Make, visit: Visit) -> bytes:
    made = {"max_tokens": 8, **make(visit.rng.randrange(10**6))}
    return text(made if path == _CHAT else {"prompt": "x", **made})


def _asking(path: str, make: Make) -> Callable[[Visit], Any]:
    async def act(visit: Visit) -> None:
        await visit.post(path, _body(path, make, visit))

    return act


def _leaving(make: Make) -> Callable[[Visit], Any]:
    """The client goes away while its grammar is compiled."""

    async def act(visit: Visit) -> None:
        async with visit.line() as line:
            if line is not None:
                await line.send(post(_COMPLETION, _body(_COMPLETION, make, visit), visit.key))
                await asyncio.sleep(visit.rng.random() * 0.1)
                visit.note("left")

    return act


def grammar_attacks() -> list[Attack]:
    attacks = [Attack(f"grammar: {name}", what, _asking(_COMPLETION, make)) for name, (what, make) in _GRAMMARS.items()]
    slow = _GRAMMARS["multiples"][1]
    return [
        *attacks,
        Attack("grammar: tool", "a strict tool whose schema nests deeply", _asking(_CHAT, _tool)),
        Attack("grammar: left", "48 clients that leave while theirs compile", _leaving(slow), 48),
    ]
