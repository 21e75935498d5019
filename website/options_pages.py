"""Make the reference of the command line from the commands: a page for each verb, with its options in groups."""

from __future__ import annotations

import importlib
import re

import click

from inflight.cli import VERBS
from inflight.cli.verb import groups_of
from website.tables import cell, table

_REST = "Other options"
_PLACE = re.compile(r"^( *)- VERBS.*\n", re.MULTILINE)


def options_pages() -> dict[str, str]:
    """Place on the site → page."""
    commands = {verb: _command(verb) for verb in VERBS}
    pages = {f"reference/{verb}.md": _page(verb, command) for verb, command in commands.items()}
    rows = [[f"[`inflight {verb}`]({verb}.md)", cell(words)] for verb, words in VERBS.items()]
    overview = [
        "# Command line",
        "Every verb has `--help`. An environment variable `INFLIGHT_<LONG_NAME>` gives any option, and most verbs read "
        "`--config FILE`, a TOML file of options by their long names ([how](../options.md)). An error is one sentence "
        "on standard error, with exit code 2 where an option or argument is wrong, else 1.",
        table(["verb", "what it does"], rows),
    ]
    return pages | {"reference/command-line.md": "\n\n".join(overview) + "\n"}


def with_verbs(settings: str) -> str:
    """mkdocs' settings, with the verbs' pages where its navigation has VERBS."""
    return _PLACE.sub(lambda found: "".join(f"{found[1]}- reference/{verb}.md\n" for verb in VERBS), settings)


def _command(verb: str) -> click.Command:
    found: click.Command = importlib.import_module(f"inflight.cli.{verb}").command
    return found


def _page(verb: str, command: click.Command) -> str:
    context = click.Context(command, info_name=f"inflight {verb}")
    parts = [f"# inflight {verb}", f"```text\n{command.get_usage(context)}\n```", _prose(command.help or "")]
    groups = groups_of(command)
    shown: dict[str, list[list[str]]] = {}
    for parameter in command.get_params(context):
        record = parameter.get_help_record(context)
        if isinstance(parameter, click.Option) and record is not None:
            name, words = record
            shown.setdefault(groups.get(str(parameter.name), _REST), []).append([f"`{cell(name)}`", cell(words)])
    if _REST in shown:
        shown[_REST] = shown.pop(_REST)  # the last
    for title, rows in shown.items():
        parts += [f"## {title}", table(["option", "meaning"], rows)]
    return "\n\n".join(parts) + "\n"


def _prose(words: str) -> str:
    """Paragraphs of a docstring, whose lines are broken for a terminal."""
    return "\n\n".join(" ".join(part.split()) for part in words.split("\n\n"))
