"""`inflight` alone: command lines that there are, on standard output, and no failure."""

from __future__ import annotations

import importlib
import re
import shlex

import click
import pytest

from inflight.cli import VERBS, call

SHOWN = re.compile(r"^  (inflight .+?)(?:   .*)?$", re.MULTILINE)


def printed(capsys: pytest.CaptureFixture[str]) -> str:
    assert call([]) == 0
    out, err = capsys.readouterr()
    assert not err
    return out


def test_every_command_that_is_shown_is_understood(capsys: pytest.CaptureFixture[str]) -> None:
    commands = SHOWN.findall(printed(capsys))
    assert {shlex.split(one)[1] for one in commands} >= {"run", "serve", "bench", "report", "simulate"}
    for one in commands:
        _, verb, *arguments = shlex.split(one)
        command: click.Command = importlib.import_module(f"inflight.cli.{verb}").command
        if arguments == ["--help"]:
            continue
        known = {name for parameter in command.params for name in parameter.opts}
        assert {word for word in arguments if word.startswith("--")} <= known, one
        words = [word for word in arguments if word != "run.jsonl" or verb != "report"]  # a file that is not there yet
        if len(words) == len(arguments):
            command.make_context(verb, words)


def test_it_fits_a_terminal_and_leads_on(capsys: pytest.CaptureFixture[str]) -> None:
    lines = printed(capsys).splitlines()
    assert max(map(len, lines)) <= 100 and len(lines) < 30
    assert "inflight --help" in lines[-1]


def test_help_and_mistakes_are_as_ever(capsys: pytest.CaptureFixture[str]) -> None:
    assert call(["--help"]) == 0
    out = capsys.readouterr().out
    assert all(f"\n  {verb}" in out for verb in VERBS)
    assert call(["sevre"]) == 2
    assert "No such command 'sevre'. Did you mean serve?" in capsys.readouterr().err
