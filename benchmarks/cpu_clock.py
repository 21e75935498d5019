"""A clock of CPU time for real engines with one thread: others on the machine do not count."""

from __future__ import annotations

import time
from typing import Any


class CpuClock:
    """CPU time of this process; where there is nothing to do, it is put forward.

    Attributes:
        rested: Seconds by which it was put forward.
    """

    def __init__(self) -> None:
        self._zero = time.process_time()
        self.rested = 0.0

    def now(self) -> float:
        return time.process_time() - self._zero

    def passed(self, seconds: float) -> None:
        """Do nothing: CPU time passes by itself."""

    def wait_until(self, moment: float, interrupt: Any = None) -> None:
        rest = max(0.0, moment - self.now())
        self._zero -= rest
        self.rested += rest
