"""Count short lives of a process that is started again whenever it ends."""

from __future__ import annotations

import time

SHORT_LIFE = 10.0  # seconds
MAX_SHORT_LIVES = 5  # one after another, until the server ends
MAX_PAUSE = 5.0  # seconds before a start


class ShortLives:
    """Short lives of one process and its successors: those that ended before they were ready, or within `SHORT_LIFE`
    after that."""

    def __init__(self) -> None:
        self._count = 0
        self._ready_at: float | None = None

    def ready(self) -> None:
        """Note that the process is ready; only the first call of each process counts."""
        if self._ready_at is None:
            self._ready_at = time.monotonic()

    def end(self) -> float | None:
        """Note that it has ended; return the seconds until the next start, or None after too many short lives."""
        is_short = self._ready_at is None or time.monotonic() - self._ready_at < SHORT_LIFE
        self._count, self._ready_at = self._count + 1 if is_short else 0, None
        if self._count >= MAX_SHORT_LIVES:
            return None
        return min(0.1 * 3**self._count, MAX_PAUSE) if self._count > 1 else 0.0
