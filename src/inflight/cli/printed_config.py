"""Print the options of a command line as a file that --config reads, with where each comes from."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from inflight.cli.options import GIVEN, LANES
from inflight.cli.verb import WORDS, groups_of

_NOT_IN_FILES = ("config", "preset", "help", "print_config")  # the values of a preset are printed
_REST = "Others"


def printed_config(context: click.Context) -> str:
    """Return the text of the file. Secrets are left out; options that are not given are comments."""
    command = context.command
    typed, _, _ = command.make_parser(context).parse_args([*context.meta[WORDS]])
    groups: dict[str, list[str]] = {}
    for one in command.params:
        if isinstance(one, click.Option) and one.name not in _NOT_IN_FILES and not one.hidden:
            title = groups_of(command).get(str(one.name), _REST)
            if line := _line(context, one, typed):
                groups.setdefault(title, []).append(line)
    texts = ["\n".join((f"# {title}", *lines)) for title, lines in groups.items()]
    for name, lane in context.meta.get(LANES, {}).items():
        lines = [f"{key.replace('_', '-')} = {_value(value)}" for key, value in lane.items()]
        texts.append("\n".join((f"[lanes.{json.dumps(name)}]", *lines)))
    return "\n\n".join(texts) + "\n"


def _line(context: click.Context, option: click.Option, typed: dict[str, Any]) -> str | None:
    """Return an option's line; None: it is not given and has no default."""
    name = str(option.name)
    given, source = option.consume_value(context, typed)
    if name == "model" and source is not ParameterSource.COMMANDLINE and context.params.get("name") is not None:
        return f"model = {_value(context.params['name'])}  # the argument MODEL"
    is_default = source is ParameterSource.DEFAULT  # whose value may be click's mark of none
    value = context.params.get(name) if is_default else option.type_cast_value(context, given)
    key = option.opts[0].lstrip("-")
    if option.is_flag and option.flag_value is False:
        value = not value
    where = _origin(context, option, source)
    if option.hide_input and value:
        variable = key.upper().replace("-", "_")
        return f"# {key} is secret; give it by INFLIGHT_{variable}  # {where}"
    if where is not None:
        return f"{key} = {_value(value)}  # {where}"
    return None if value in (None, (), "") else f"# {key} = {_value(value)}"


def _origin(context: click.Context, option: click.Option, source: ParameterSource) -> str | None:
    """Return where a value comes from; None: it is the option's default."""
    if source is ParameterSource.COMMANDLINE:
        return "the command line"
    if source is ParameterSource.ENVIRONMENT:
        return next(one for one in option.envvar or () if os.environ.get(one))
    if source is ParameterSource.DEFAULT_MAP:
        return str(context.meta.get(GIVEN, {}).get(option.name, f"default of {context.info_name}"))
    return None


def _value(value: Any) -> str:
    """Return a value in TOML, whose texts are those of JSON."""
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_value, value))}]"
    return json.dumps(str(value) if isinstance(value, Path) else value, ensure_ascii=False)
