"""Time for the engine: real, or virtual (moved only by step results and waits, so that wall time cannot leak in)."""

from __future__ import annotations

import threading
import time
from typing import Protocol


class Clock(Protocol):
    def now(self) -> float:
        """Seconds since the clock's own zero."""

    def passed(self, seconds: float) -> None:
        """A step took this long."""

    def wait_until(self, moment: float, interrupt: threading.Event | None = None) -> None:
        """Return at `moment`, or earlier when `interrupt` is set."""


class MonotonicClock:
    """Begins at 0, so that a record holds the very numbers that the engine has seen."""

    def __init__(self) -> None:
        self._zero = time.monotonic()

    def now(self) -> float:
        return time.monotonic() - self._zero

    def passed(self, seconds: float) -> None:
        """Real time has passed by itself."""

    def wait_until(self, moment: float, interrupt: threading.Event | None = None) -> None:
        delay = moment - self.now()
        if delay <= 0:
            return
        if interrupt is None:
            time.sleep(delay)
        else:
            interrupt.wait(delay)


class VirtualClock:
    def __init__(self, start: float = 0.0):
        self._now = start

    def now(self) -> float:
        return self._now

    def passed(self, seconds: float) -> None:
        self._now += seconds

    def wait_until(self, moment: float, interrupt: threading.Event | None = None) -> None:
        self._now = max(self._now, moment)
