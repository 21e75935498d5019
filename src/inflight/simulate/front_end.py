"""The front ends of simulated engines: a process of each that reads requests, applies templates and tokenizes."""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence


class FrontEnd:
    """Holds requests until they are routed.

    All that an engine's process works on share its processor, so that of many which come at once none is ready before
    nearly all of their work is done: measured vLLM servers that get a thousand requests compute nothing for ten
    seconds, and then go on as if all had come together. The latency passes after that, beside the work for others.
    """

    def __init__(self, request_seconds: float, latency: float):
        """request_seconds: of the processor for each request. latency: of each, however few there are."""
        self._each, self._latency = request_seconds, latency
        self._preparing: list[tuple[float, int, float]] = []  # heap of (ready, index of the entry, intended time)
        self._working: list[float] = []  # heap of the times at which work for a request ends

    @property
    def free(self) -> bool:
        """Whether it takes no time."""
        return not (self._each or self._latency)

    def next_time(self) -> float:
        """Return when the next request is ready; infinite where there is none."""
        return self._preparing[0][0] if self._preparing else math.inf

    def take(self, entries: Sequence[tuple[int, float]], now: float, engines: int = 1) -> None:
        """Take entries that are sent at this time, as (index, intended send time).

        Args:
            engines: Among whose front ends they are shared out evenly.
        """
        while self._working and self._working[0] <= now:
            heapq.heappop(self._working)
        done = now + self._each * math.ceil((len(self._working) + len(entries)) / engines)
        for index, intended in entries:
            heapq.heappush(self._working, done)
            heapq.heappush(self._preparing, (done + self._latency, index, intended))

    def pop(self) -> tuple[int, float]:
        """Remove the request that `next_time` is of, and return its (index, intended send time)."""
        _, index, intended = heapq.heappop(self._preparing)
        return index, intended
