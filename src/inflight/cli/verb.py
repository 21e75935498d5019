"""A command whose --help shows its options in groups, and how options come to be in one.

Knows click's commands and parameters; not what any option means.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]
_REST = "Options"
_GROUPS = "option_groups"  # attribute of a verb's function: name of an option → title of its group


def stacked(*decorators: Decorator) -> Decorator:
    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        for decorator in reversed(decorators):
            function = decorator(function)
        return function

    return decorate


def grouped(title: str, *decorators: Decorator) -> Decorator:
    """The options of all of them under one title; those that are in a group already stay there."""

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        before = len(_parameters(function))
        function = stacked(*decorators)(function)
        groups: dict[str, str] = vars(function).setdefault(_GROUPS, {})
        for parameter in _parameters(function)[before:]:
            groups.setdefault(str(parameter.name), title)
        return function

    return decorate


def _parameters(function: Callable[..., Any]) -> list[click.Parameter]:
    """That decorators have given to it so far."""
    found: list[click.Parameter] = vars(function).get("__click_params__", [])
    return found


def groups_of(command: click.Command) -> dict[str, str]:
    """Titles of the groups that options are in, by their names."""
    found: dict[str, str] = vars(command.callback).get(_GROUPS, {})
    return found


class Verb(click.Command):
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
