"""Count short lives of a process that is started again whenever it ends."""

from __future__ import annotations

import time

SHORT_LIFE = 10.0  # seconds
MAX_SHORT_LIVES = 5  # one after another, until the server ends
MAX_PAUSE = 5.0  # seconds before a start


class ShortLives:
    """Short lives of one process and its successors: those that were never ready, or ended within `SHORT_LIFE`."""

    def __init__(self) -> None:
        self._count, self._started = 0, time.monotonic()

    def begin(self) -> None:
        """Note that a process is started."""
        self._started = time.monotonic()

    def end(self, *, was_ready: bool) -> float | None:
        """Note that it has ended; return the seconds until the next start, or None after too many short lives."""
        is_short = not was_ready or time.monotonic() - self._started < SHORT_LIFE
        self._count = self._count + 1 if is_short else 0
        if self._count >= MAX_SHORT_LIVES:
            return None
        return min(0.1 * 3**self._count, MAX_PAUSE) if self._count > 1 else 0.0
