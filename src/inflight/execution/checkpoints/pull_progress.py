"""Report how far a pull is: steps for any reader, a line for people, and a lock that two pulls of one model share."""

from __future__ import annotations

import fcntl
import logging
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

from msgspec import Struct

_LINE_SECONDS, _BAR_SECONDS = 10.0, 0.2
_RATE_SECONDS = 2.0  # before which a rate would say little
log = logging.getLogger(__name__)


class PullStep(Struct, frozen=True):
    """One moment of a pull.

    Attributes:
        status: `asking` the hub which files there are, `chosen` one of several, `waiting` for another pull of this
            model, `downloading`, `verifying` a digest, `done`.
        model: The name as the user typed it.
        text: A sentence for people; empty while bytes come.
        digest: SHA-256 of the file that comes, in hexadecimal; empty where it is not known.
        completed: Bytes on disk, of `total`: of the file that `digest` names, else of the whole model.
    """

    status: Literal["asking", "chosen", "waiting", "downloading", "verifying", "done"]
    model: str
    text: str = ""
    digest: str = ""
    completed: int = 0
    total: int = 0


Report = Callable[[PullStep], None]


def megabytes(count: float) -> str:
    """Return a size in bytes as users read it, such as `93 MB` or `4.9 GB`."""
    return f"{count / 1e9:,.1f} GB" if count >= 1e9 else f"{count / 1e6:,.0f} MB"


class ProgressLine:
    """Show steps on standard error: one line that changes on a terminal, a line now and then elsewhere.

    A program that keeps a log, such as the server, has them there.
    """

    def __init__(self) -> None:
        self._digest: str | None = None
        self._began, self._first, self._shown = 0.0, 0, 0.0
        self._is_open = False

    def __call__(self, step: PullStep) -> None:
        if step.status == "downloading":
            self._show_bytes(step)
            return
        self.close()
        if step.text:
            _say(step.text)

    def close(self) -> None:
        """Remove the line that changes."""
        if self._is_open:
            print("\r\033[K", end="", file=sys.stderr, flush=True)
            self._is_open = False

    def _show_bytes(self, step: PullStep) -> None:
        now, on_terminal = time.monotonic(), sys.stderr.isatty() and not log.hasHandlers()
        if step.digest != self._digest:
            self._digest, self._began, self._first = step.digest, now, step.completed
            self._shown = now if not on_terminal else 0.0
        if now - self._shown < (_BAR_SECONDS if on_terminal else _LINE_SECONDS):
            return
        self._shown = now
        line = f"{step.model}: {megabytes(step.completed)} of {megabytes(step.total)}{self._rate(step, now)}"
        if on_terminal:
            print(f"\r\033[K{line}", end="", file=sys.stderr, flush=True)
            self._is_open = True
        else:
            _say(line)

    def _rate(self, step: PullStep, now: float) -> str:
        seconds, came = now - self._began, step.completed - self._first
        if seconds < _RATE_SECONDS or came <= 0:
            return ""
        left = round((step.total - step.completed) * seconds / came)
        minutes = f"{left // 60} min " if left >= 60 else ""
        return f", {came / seconds / 1e6:,.1f} MB/s, {minutes}{left % 60} s left"


@contextmanager
def shown_by(report: Report | None) -> Iterator[Report]:
    """Yield what is called with the steps; None: one that shows them, until here."""
    if report is not None:
        yield report
        return
    line = ProgressLine()
    try:
        yield line
    finally:
        line.close()


def _say(sentence: str) -> None:
    if log.hasHandlers():
        log.info(sentence)
    else:
        print(sentence, file=sys.stderr)


@contextmanager
def locked(path: Path, model: str, report: Report) -> Iterator[None]:
    """Hold a pull's lock, which ends with the process that holds it; report that another has it, and wait."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            report(PullStep("waiting", model, f"{model}: another process is pulling it; waiting for that."))
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield
