"""How far a pull is, as a terminal and a pipe show it."""

from __future__ import annotations

import pytest

from inflight.execution.checkpoints import pull_progress
from inflight.execution.checkpoints.pull_progress import ProgressLine, PullStep, megabytes


class Shown:
    """Steps of a download of a gigabyte, at times that are given."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], on_terminal: bool) -> None:
        self._now, self._capsys, self._line = 0.0, capsys, ProgressLine()
        monkeypatch.setattr("time.monotonic", lambda: self._now)
        monkeypatch.setattr("sys.stderr.isatty", lambda: on_terminal)
        monkeypatch.setattr(pull_progress.log, "hasHandlers", lambda: False)  # as without pytest

    def at(self, now: float, completed: int) -> str:
        self._now = now
        self._line(PullStep("downloading", "owner/name", "", "a" * 64, completed, 10**9))
        return self._capsys.readouterr().err

    def end(self) -> str:
        self._line(PullStep("done", "owner/name", "owner/name: pulled"))
        return self._capsys.readouterr().err


def test_a_terminal_has_one_line_with_rate_and_time_left(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shown = Shown(monkeypatch, capsys, True)
    assert shown.at(100.0, 200_000_000) == "\r\033[Kowner/name: 200 MB of 1.0 GB"  # resumed: 200 MB were there
    assert shown.at(100.1, 210_000_000) == ""
    assert shown.at(110.0, 240_000_000) == "\r\033[Kowner/name: 240 MB of 1.0 GB, 4.0 MB/s, 3 min 10 s left"
    assert shown.end() == "\r\033[K" + "owner/name: pulled\n"


def test_elsewhere_there_is_a_line_now_and_then(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shown = Shown(monkeypatch, capsys, False)
    assert shown.at(100.0, 0) == shown.at(105.0, 10**8) == ""
    assert shown.at(110.0, 2 * 10**8) == "owner/name: 200 MB of 1.0 GB, 20.0 MB/s, 40 s left\n"
    assert shown.end() == "owner/name: pulled\n"


def test_sizes() -> None:
    assert [megabytes(one) for one in (92_871_040, 999_000_000, 4_920_000_000)] == ["93 MB", "999 MB", "4.9 GB"]
