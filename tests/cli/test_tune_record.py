"""`inflight tune --record` and `--url`: what they refuse."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from inflight.cli import call

from .terminal import CommandResult

SLO = ("--slo", "ttft=5000(p90)")


@pytest.fixture
def tune(capfd: pytest.CaptureFixture[str]) -> Callable[..., CommandResult]:
    def ask(*arguments: object) -> CommandResult:
        code = call(["tune", *(str(one) for one in arguments)])
        out, err = capfd.readouterr()
        return CommandResult(code, out, err)

    return ask


def test_a_server_that_is_away_is_reported(tune: Callable[..., CommandResult]) -> None:
    assert "does not answer" in tune("--url", "http://127.0.0.1:9", *SLO).sentence()
    assert "does not answer" in tune("--url", "http://[", *SLO).sentence()


def test_files_that_are_no_records_are_reported(tune: Callable[..., CommandResult], tmp_path: Path) -> None:
    path = tmp_path / "some.json"
    for content, sentence in (("", "is empty"), ('{"kind": "step model"}\n', "kind 'step model'"), ("{\n", "line 1")):
        path.write_text(content)
        assert sentence in tune("--record", path, *SLO).sentence()


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("--url", "http://x", "--rate", 3), "leave --rate out"),
        (("--url", "http://x", "--hardware", "h100"), "leave --hardware out"),
        (("--url", "http://x", "--weights", "fp8"), "leave --weights out"),
        (("--url", "http://x", "--turns", 3), "leave --turns out"),
        (("--last", 60, "--rate", 3), "--last is about a record"),
        (("--url", "http://x", "--last", 0), "--last is 0"),
        (("--url", "http://x", "--verify", 5), "--verify is 5, but for a record the proposed settings alone run"),
    ],
)
def test_options_that_do_not_go_together_are_reported(
    tune: Callable[..., CommandResult], arguments: tuple[object, ...], sentence: str
) -> None:
    assert sentence in tune(*arguments, *SLO).sentence()
