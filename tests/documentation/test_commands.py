"""Every call of inflight that a text shows in a block: its verb and its options are there."""

from __future__ import annotations

import contextlib
import importlib
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from inflight.cli import VERBS

ROOT = Path(__file__).parents[2]
TEXTS = sorted(
    [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *ROOT.glob("deploy/*.md"), *ROOT.glob("examples/*.md")]
)
FENCED = re.compile(r"^(```+)(\w*).*?\n(.*?)^\1$", re.MULTILINE | re.DOTALL)
CALL = re.compile(r"(?:\$ )?(?:\w+=\S+ )*(?:\./)?inflight +(.*)", re.DOTALL)


def calls(text: str) -> Iterator[list[str]]:
    for block in (body for _, kind, body in FENCED.findall(text) if kind in ("", "sh", "bash", "console")):
        call = ""
        for line in re.sub(r"\\\n\s*", " ", block).splitlines():
            call = f"{call}\n{line}" if call else line
            if found := CALL.match(call):
                with contextlib.suppress(ValueError):  # a quotation that goes on in the next line
                    yield shlex.split(found[1], comments=True)
                    call = ""
            else:
                call = ""
        assert not call, f"a quotation has no end: {call}"


def test_calls_are_found() -> None:
    assert sum(len(list(calls(path.read_text(encoding="utf-8")))) for path in TEXTS) > 80


@pytest.mark.parametrize("path", TEXTS, ids=lambda one: str(one.relative_to(ROOT)))
def test_verbs_and_options_are_there(path: Path) -> None:
    for words in calls(path.read_text(encoding="utf-8")):
        verb, *arguments = words
        if verb.startswith("-"):
            continue
        assert verb in VERBS, words
        command: click.Command = importlib.import_module(f"inflight.cli.{verb}").command
        known = {name for parameter in command.params for name in (*parameter.opts, *parameter.secondary_opts)}
        asked = {word.partition("=")[0] for word in arguments if re.match(r"--\w", word)}
        assert asked <= known | {"--help"}, f"{words}: {asked - known} of {verb}"
