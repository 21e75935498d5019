"""Tables of options in docs/, read off the command line: `python -m website.option_tables` writes them anew.

A table begins behind `<!-- options of serve: --lora --max-loras -->`, and ends before `<!-- end of options -->`.
"""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import click

from website.pages import ROOT
from website.tables import cell, table

PAGES = sorted((ROOT / "docs").rglob("*.md"))
_TABLE = re.compile(r"(<!-- options of (\w+): ([-\w ]+) -->\n).*?(<!-- end of options -->)", re.DOTALL)


def with_options(page: str) -> str:
    """Return a page whose tables of options are as the command line has them."""
    return _TABLE.sub(lambda found: f"{found[1]}\n{_table(found[2], found[3].split())}\n\n{found[4]}", page)


def _table(verb: str, names: list[str]) -> str:
    command: click.Command = importlib.import_module(f"inflight.cli.{verb}").command
    context = click.Context(command)
    known = {name: parameter for parameter in command.params for name in parameter.opts}
    records = [known[name].get_help_record(context) for name in names]
    return table(["option", "meaning"], [[f"`{cell(one[0])}`", cell(one[1])] for one in records if one is not None])


def _write(path: Path) -> None:
    page = path.read_text(encoding="utf-8")
    if (written := with_options(page)) != page:
        path.write_text(written, encoding="utf-8")
        print(path.relative_to(ROOT))


if __name__ == "__main__":
    for path in PAGES:
        _write(path)
