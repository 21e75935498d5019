"""Progress of long work on standard error: a bar on a terminal, a line every few seconds elsewhere.

Knows how to show counts; short work shows nothing.
"""

from __future__ import annotations

import sys
import time
from typing import Any

_QUIET_SECONDS = 1.0  # work that ends sooner shows nothing
_LINE_SECONDS = 10.0


class Progress:
    def __init__(self, what: str, unit: str):
        self._what, self._unit = what, unit
        self._started = self._last_line = time.monotonic()
        self._bar: Any = None
        self._task: Any = None

    def update(self, done: float, total: float | None, note: str = "") -> None:
        now = time.monotonic()
        if now - self._started < _QUIET_SECONDS:
            return
        if sys.stderr.isatty():
            self._show_bar(done, total, note)
        elif now - self._last_line >= _LINE_SECONDS:
            self._last_line = now
            of = "" if total is None else f" of {total:,.0f}"
            print(f"{self._what}: {done:,.0f}{of} {self._unit}{note and ', ' + note}", file=sys.stderr)

    def close(self) -> None:
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
            self._bar.tasks[0].start_time -= time.monotonic() - self._started  # it has begun before it is shown
            self._bar.start()
        self._bar.update(self._task, completed=done, total=total, note=shown)
