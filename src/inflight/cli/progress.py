"""Report long work: a bar on a terminal, a line every few seconds elsewhere; runs that are left; Ctrl-C as a request.

Work that takes less than a second shows nothing.
"""

from __future__ import annotations

import gc
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from inflight.cli.summary import show
from inflight.config.engine import EngineSettings
from inflight.config.scheduling import SchedulingSettings
from inflight.config.threads import load_numpy

if TYPE_CHECKING:
    from inflight.build import Engine

_QUIET_SECONDS = 1.0  # work that ends sooner shows nothing
_LINE_SECONDS = 10.0


class Progress:
    """Progress of one piece of work."""

    def __init__(self, what: str, unit: str):
        self._what, self._unit = what, unit
        self._started = self._last_line = time.monotonic()
        self._bar: Any = None
        self._task: Any = None

    def update(self, done: float, total: float | None, note: str = "") -> None:
        """Show how far the work is. total: None: not known."""
        now = time.monotonic()
        if now - self._started < _QUIET_SECONDS:
            return
        if sys.stderr.isatty():
            self._show_bar(done, total, note)
        elif now - self._last_line >= _LINE_SECONDS:
            self._last_line = now
            of = "" if total is None else f" of {total:,.0f}"
            show(f"{self._what}: {done:,.0f}{of} {self._unit}{note and ', ' + note}")

    def close(self) -> None:
        """Remove the bar."""
        if self._bar is not None:
            self._bar.stop()
            self._bar = None

    def _show_bar(self, done: float, total: float | None, note: str) -> None:
        shown = f"{done:,.0f}" + ("" if total is None else f"/{total:,.0f}") + f" {self._unit}{note and '  ' + note}"
        if self._bar is None:
            # Imported here: rich takes longer to load than a short run takes.
            from rich.console import Console
            from rich.progress import BarColumn, TextColumn, TimeElapsedColumn
            from rich.progress import Progress as Bar

            columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[note]}"))
            self._bar = Bar(*columns, TimeElapsedColumn(), console=Console(stderr=True), transient=True)
            self._task = self._bar.add_task(self._what, total=total, note=shown)
            self._bar.tasks[0].start_time -= time.monotonic() - self._started  # the work began before the bar is shown
            self._bar.start()
        self._bar.update(self._task, completed=done, total=total, note=shown)


class Remaining:
    """Runs that are left, and about how long they take."""

    def __init__(
        self, runs: int, seconds: float | None, report: Callable[[str], None], now: Callable[[], float] = time.monotonic
    ):
        """Report the number of runs.

        Args:
            runs: All runs.
            seconds: Minimum of all of them, where requests are sent at their own times; None: not known before the
                first.
            report: Called with sentences.
            now: The clock.
        """
        self._runs, self._known, self._report, self._now = runs, seconds, report, now
        self._begun = 0
        self._first = now()
        how_long = "the time left is known after the first" if seconds is None else f"about {duration(seconds)}"
        if runs > 1:
            report(f"{runs:,} runs: {how_long}.")

    def begin(self, what: str) -> None:
        """Report that a run begins. what: describes it."""
        now, done = self._now(), self._begun
        self._begun += 1
        if not done:
            self._first, left = now, self._known
        else:
            left = (now - self._first) / done * (self._runs - done)
        about = "" if left is None else f"; about {duration(left)} left"
        self._report(f"Run {self._begun:,} of {self._runs:,}: {what}{about}")


def duration(seconds: float) -> str:
    """Return a time as text, to the second below two minutes, to ten seconds below an hour."""
    whole = round(seconds)
    if whole < 120:
        return f"{whole} s"
    minutes, rest = divmod(round(whole / 10) * 10, 60)
    if minutes < 60:
        return f"{minutes} min" + (f" {rest} s" if rest else "")
    return f"{minutes // 60} h" + (f" {minutes % 60} min" if minutes % 60 else "")


def ago(moment: float) -> str:
    """Return how long ago a moment was. moment: in seconds since 1970."""
    seconds = max(0.0, time.time() - moment)
    return f"{seconds // 86400:,.0f} days ago" if seconds >= 2 * 86400 else f"{duration(seconds)} ago"


class Interrupt:
    """While entered, the first SIGINT only sets `wanted`; the second one raises KeyboardInterrupt."""

    def __init__(self) -> None:
        self.wanted = False

    def __enter__(self) -> Interrupt:
        self._before = signal.signal(signal.SIGINT, self._note)
        return self

    def __exit__(self, *exception: object) -> None:
        signal.signal(signal.SIGINT, self._before)

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.wanted:
            raise KeyboardInterrupt
        self.wanted = True


def open_engine(settings: EngineSettings, scheduling: SchedulingSettings, record: Path | None = None) -> Engine:
    """Load an engine, with progress on standard error."""
    # All that is imported and loaded stays: collecting garbage meanwhile, at every step and at the end costs a
    # twentieth of a small model's start.
    gc.disable()
    progress = Progress("Loading the model", "M parameters")
    try:
        load_numpy()
        from inflight.build import build_engine  # loads the kernels

        return build_engine(settings, scheduling, record, lambda done, total: progress.update(done / 1e6, total / 1e6))
    finally:
        progress.close()
        gc.freeze()
        gc.enable()
