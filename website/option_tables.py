"""Tables of options in docs/, read off the command line: `python -m website.option_tables` writes them anew.

A table begins behind `<!-- options of serve: --lora --max-loras -->`, and ends before `<!-- end of options -->`. Behind
`<!-- vllm: read as -->` (or llama-server, sglang; no effect, not supported) are the options of another server.
"""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import click

from inflight.cli.foreign_options import NO_EFFECT, READ_AS, REFUSED, SAMPLING, ReadAs
from inflight.cli.translated_options import names_of
from website.pages import ROOT
from website.tables import cell, table

PAGES = sorted((ROOT / "docs").rglob("*.md"))
_TABLE = re.compile(r"(<!-- options of (\w+): ([-\w ]+) -->\n).*?(<!-- end of options -->)", re.DOTALL)


_FOREIGN = re.compile(
    r"(<!-- (vllm|llama-server|sglang): (read as|no effect|not supported) -->\n).*?(<!-- end of options -->)", re.DOTALL
)


def with_options(page: str) -> str:
    """Return a page whose tables of options are as the command line has them."""
    page = _TABLE.sub(lambda found: f"{found[1]}\n{_table(found[2], found[3].split())}\n\n{found[4]}", page)
    return _FOREIGN.sub(lambda found: f"{found[1]}\n{_foreign(found[2], found[3])}\n\n{found[4]}", page)


def _foreign(server: str, kind: str) -> str:
    """Return the table of a server's options of this kind."""
    letter = server[0]
    if kind == "read as":
        known = SAMPLING if server == "llama-server" else {}
        rows = [(row.names, _ours(row)) for row in READ_AS if letter in row.servers]
        rows += [(name, f"`--override-generation-config` ({key})") for name, key in known.items()]
    else:
        found = NO_EFFECT if kind == "no effect" else REFUSED
        rows = [(names, cell(reason)) for servers, names, reason in found if letter in servers]
    return table(
        [server, {"read as": "here", "no effect": "why"}.get(kind, "instead")], [[_names(a), b] for a, b in rows]
    )


def _ours(row: ReadAs) -> str:
    ours = f"`{row.ours}`" if row.ours else ""
    return ", ".join(part for part in (ours, cell(row.note)) if part) or "1 has no effect; else not supported"


def _names(text: str) -> str:
    return ", ".join(f"`{cell(name)}`" for name in names_of(text)[0])


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
