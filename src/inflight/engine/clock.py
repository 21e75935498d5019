"""Clocks of the engine: real time, or virtual time, which only step results and waits advance."""

from __future__ import annotations

import threading
import time
from typing import Protocol


class Clock(Protocol):
    """A clock in seconds."""

    def now(self) -> float:
        """Return seconds since the clock's own zero."""

    def passed(self, seconds: float) -> None:
        """Advance by a step's duration, on virtual time."""

    def wait_until(self, moment: float, interrupt: threading.Event | None = None) -> None:
        """Return at `moment`, or earlier when `interrupt` is set."""


class MonotonicClock:
    """Real time. It begins at 0, so that a record has the very numbers of the engine."""

    def __init__(self) -> None:
        self._zero = time.monotonic()

    def now(self) -> float:
        return time.monotonic() - self._zero

    def passed(self, seconds: float) -> None:
        """Do nothing: real time passes by itself."""

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
