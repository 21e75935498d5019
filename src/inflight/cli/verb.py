"""A command with options in groups, each of which an environment variable may give, too."""

from __future__ import annotations

import copy
import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import click

Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]
_REST = "Options"
_TYPED = "inflight.typed"  # key in click's context: options of the command line
_GROUPS = "option_groups"  # attribute of a verb's function: name of an option → title of its group


def stacked(*decorators: Decorator) -> Decorator:
    """Return one decorator that applies all, the first one outermost."""

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        for decorator in reversed(decorators):
            function = decorator(function)
        return function

    return decorate


def grouped(title: str, *decorators: Decorator) -> Decorator:
    """Show the options of all decorators under one title; those that are in a group already stay there."""

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        before = len(_parameters(function))
        function = stacked(*decorators)(function)
        groups: dict[str, str] = vars(function).setdefault(_GROUPS, {})
        for parameter in _parameters(function)[before:]:
            groups.setdefault(str(parameter.name), title)
        return function

    return decorate


def _parameters(function: Callable[..., Any]) -> list[click.Parameter]:
    """Return the parameters that decorators have added so far."""
    found: list[click.Parameter] = vars(function).get("__click_params__", [])
    return found


def groups_of(command: click.Command) -> dict[str, str]:
    """Return the titles of options' groups, by the options' names."""
    found: dict[str, str] = vars(command.callback).get(_GROUPS, {})
    return found


def variables_of(parameter: click.Parameter) -> list[str]:
    """Return the environment variables of an option: INFLIGHT_<LONG_NAME>, and others that are declared."""
    if not isinstance(parameter, click.Option) or parameter.hidden or not parameter.allow_from_autoenv:
        return []
    more = [parameter.envvar] if isinstance(parameter.envvar, str) else list(parameter.envvar or ())
    names = [name[2:].upper().replace("-", "_") for name in parameter.opts if name.startswith("--")]
    return list(dict.fromkeys((*more, *(f"INFLIGHT_{name}" for name in names))))


class Verb(click.Command):
    """A verb. An option comes from the command line, else the environment, else --config, else its default."""

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        for parameter in self.params:
            parameter.envvar = variables_of(parameter)

    def without_environment(self) -> click.Command:
        """Return the verb with options that no environment variable gives."""
        bare = copy.copy(self)
        bare.params = [copy.copy(parameter) for parameter in self.params]
        for parameter in bare.params:
            parameter.envvar = None
        return bare

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        ctx.meta[_TYPED] = {word.partition("=")[0] for word in args}
        with _naming_variables(ctx):
            return super().parse_args(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        with _naming_variables(ctx):
            return super().invoke(ctx)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        groups = groups_of(self)
        shown: dict[str, list[tuple[str, str]]] = {}
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx)
            if record is not None:
                shown.setdefault(groups.get(str(parameter.name), _REST), []).append(record)
        shown[_REST] = shown.pop(_REST, [])  # the last
        for title, records in shown.items():
            with formatter.section(title):
                formatter.write_dl(records)


@contextmanager
def _naming_variables(ctx: click.Context) -> Iterator[None]:
    """Add to an error the environment variables of the options that it names."""
    try:
        yield
    except click.UsageError as error:
        sentence = error.format_message()
        if not (note := _from_environment(ctx, sentence)):
            raise
        raise click.UsageError(f"{sentence}{note if sentence.endswith('.') else f'.{note}'}", ctx) from None
    except ValueError as error:
        if note := _from_environment(ctx, str(error)):
            error.add_note(note)
        raise


def _from_environment(ctx: click.Context, sentence: str) -> str:
    notes = []
    for one in ctx.command.params:
        name = rf"(?<![\w-])({'|'.join(map(re.escape, one.opts))})(?![\w-])|^{one.name} "
        is_typed = not ctx.meta[_TYPED].isdisjoint((*one.opts, *one.secondary_opts))
        if one.envvar and not is_typed and re.search(name, sentence) and one.resolve_envvar_value(ctx) is not None:
            given = next(variable for variable in one.envvar if os.environ.get(variable))
            notes.append(f" {one.opts[0]} comes from the environment variable {given}.")
    return "".join(notes)
