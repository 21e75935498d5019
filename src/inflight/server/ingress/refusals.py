"""Refusals that nobody is to read one by one: counted, and told at most once a minute each.

Whoever floods the server must not be able to flood its log.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter

SECONDS = 60.0

_log = logging.getLogger("inflight.ingress")


class Refusals:
    """Called in the event loop's thread."""

    def __init__(self, seconds: float = SECONDS):
        self._seconds = seconds
        self._untold: Counter[str] = Counter()
        self._telling: asyncio.TimerHandle | None = None

    def count(self, what: str) -> None:
        """what: in plural, as the log is to have it after the number. The first is told at once."""
        self._untold[what] += 1
        if self._telling is None:
            self._tell()

    def _tell(self) -> None:
        self._telling = None
        if not self._untold:
            return
        for what, number in self._untold.items():
            _log.warning(f"{number} {what} (told at most once in {self._seconds:g} s).")
        self._untold.clear()
        self._telling = asyncio.get_running_loop().call_later(self._seconds, self._tell)
