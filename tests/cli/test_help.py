"""Help in groups, and options that travel as one object: what it holds, each verb that makes one has."""

from __future__ import annotations

import importlib
import os
import re
import subprocess
import sys
from dataclasses import fields

import click
import pytest

from inflight.cli import VERBS, call
from inflight.cli.bench_options import LoadOptions, OutcomeOptions, ServerOptions, WorkloadOptions
from inflight.cli.demand import DemandOptions
from inflight.cli.verb import groups_of

TAKEN = {
    "bench": (ServerOptions, LoadOptions, WorkloadOptions, OutcomeOptions),
    "compare": (WorkloadOptions,),
    "simulate": (LoadOptions, WorkloadOptions),
    "plan": (DemandOptions,),
    "tune": (DemandOptions,),
}


def command_of(verb: str) -> click.Command:
    found: click.Command = importlib.import_module(f"inflight.cli.{verb}").command
    return found


@pytest.mark.parametrize("verb", TAKEN)
def test_a_verb_has_the_options_that_it_hands_on(verb: str) -> None:
    names = {parameter.name for parameter in command_of(verb).params}
    for kind in TAKEN[verb]:
        assert {item.name for item in fields(kind)} <= names, kind


@pytest.mark.parametrize(
    ("verb", "titles"),
    [
        ("serve", ["Engine", "Scheduling", "Server", "Keys and tenants", "Files and batch jobs", "Stored responses",
                   "Limits of calls",
                   "Connections", "Log and traces", "Replicas", "Options"]),
        ("bench", ["Server", "Load", "Workload", "Search and output", "Options"]),
        ("compare", ["What is compared", "Engine", "Scheduling", "Load", "Workload", "Options"]),
        ("simulate", ["Machine", "Engine", "Scheduling", "Load", "Workload", "Replicas and pools", "Options"]),
        ("plan", ["Machine", "Demand and SLOs", "Settings", "Options"]),
    ],
)  # fmt: skip
def test_help_shows_options_in_groups(capsys: pytest.CaptureFixture[str], verb: str, titles: list[str]) -> None:
    assert call([verb, "--help", "all"]) == 0
    out = capsys.readouterr().out
    places = [out.index(f"\n{title}:\n") for title in titles]
    assert places == sorted(places)


@pytest.mark.parametrize("verb", VERBS)
def test_help_shows_every_option_once(capsys: pytest.CaptureFixture[str], verb: str) -> None:
    assert call([verb, "--help", "all"]) == 0
    out = capsys.readouterr().out.splitlines()
    lines = out[next(place for place, line in enumerate(out) if re.fullmatch(r"[A-Z][\w ]+:", line)) :]
    for parameter in command_of(verb).params:
        if isinstance(parameter, click.Option):
            shown = [
                line
                for line in lines
                if line.startswith(f"  {', '.join(parameter.opts)} ") or line == f"  {', '.join(parameter.opts)}"
            ]
            assert len(shown) == (not parameter.hidden), parameter.opts


@pytest.mark.parametrize(
    ("words", "found"),
    [
        ("inflight se", {"serve"}),
        ("inflight serve --max-num-s", {"--max-num-seqs"}),
        ("inflight serve --dtype b", {"bfloat16"}),
        ("inflight bench --endpoint ch", {"chat"}),
        ("inflight serve --help k", {"keys"}),
        ("inflight serve smol", {"smollm2"}),
    ],
)
def test_a_shell_completes_verbs_options_and_known_values(words: str, found: set[str]) -> None:
    asked = {"_INFLIGHT_COMPLETE": "bash_complete", "COMP_WORDS": words, "COMP_CWORD": str(words.count(" "))}
    done = subprocess.run(
        [sys.executable, "-m", "inflight.cli"], env=os.environ | asked, capture_output=True, text=True
    )
    assert {line.partition(",")[2] for line in done.stdout.splitlines()} == found, done.stderr


@pytest.mark.parametrize("verb", ["serve", "run", "chat", "compare", "bench", "simulate"])
def test_a_short_help_names_the_groups(capsys: pytest.CaptureFixture[str], verb: str) -> None:
    with command_of(verb).make_context(verb, [], resilient_parsing=True):  # without the parent, which names -h, too
        assert call([verb, "-h"]) == 0
    out = capsys.readouterr().out
    options = [line for line in out.splitlines() if line.startswith("  --")]
    assert 8 <= len(options) <= 20 and f"More, by `inflight {verb} --help GROUP` or `--help all`:" in out
    title, word = ("Engine", "engine") if "Engine" in groups_of(command_of(verb)).values() else ("Load", "load")
    assert re.search(rf"^  {word} +{title}: \d+$", out, re.MULTILINE)
    assert call([verb, "--help", word]) == 0
    out = capsys.readouterr().out
    assert f"\n{title}:\n" in out and "More, by" not in out and "\nWorkload:\n" not in out


def test_a_group_that_there_is_not_is_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert call(["chat", "--help", "smollm2"]) == 2
    assert "--help has no group 'smollm2'; there are all, engine, scheduling, sampling" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("verb", "hint"),
    [
        ("srve", "Did you mean serve?"),
        ("run-batch", "Here it is `inflight run --input FILE`."),
        ("launch_server", "Here it is `inflight serve`."),
        ("collect-env", "Here it is `inflight doctor`."),
        ("version", "Here it is `inflight --version`."),
    ],
)
def test_verbs_of_others_are_answered_with_ours(capsys: pytest.CaptureFixture[str], verb: str, hint: str) -> None:
    assert call([verb]) == 2
    assert f"No such command '{verb}'. {hint}" in capsys.readouterr().err


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_scripts_of_completion_are_printed(capsys: pytest.CaptureFixture[str], shell: str) -> None:
    assert call(["completion", shell]) == 0
    assert f"_INFLIGHT_COMPLETE={shell}_complete" in capsys.readouterr().out
