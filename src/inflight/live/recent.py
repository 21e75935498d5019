"""Compute rates and percentiles over the last seconds, at a cost that does not grow with the number of tokens.

Latencies are counted frame by frame in classes 5 % wide; frames older than the window are subtracted. Percentiles are
exact to 2.5 %, and no latencies are sorted.
"""

from __future__ import annotations

import math
from collections import Counter, deque

from inflight.live.frames import Latencies, Rates

_WIDTH = math.log(1.05)
_MIN_SECONDS = 1e-5


class RecentLatencies:
    """The latencies of the frames in the window."""

    def __init__(self) -> None:
        self._counts: Counter[int] = Counter()  # class → number of latencies in the window
        self._frames: deque[tuple[Counter[int], int, int, float]] = deque()  # counts, with target, met, sum; each frame
        self._with_target = self._met = 0
        self._begin()

    def _begin(self) -> None:
        self._now: Counter[int] = Counter()
        self._now_with_target = self._now_met = 0
        self._now_sum = 0.0

    def add(self, seconds: float, target: float, times: int = 1) -> None:
        """Count a latency. target: in seconds; 0: none."""
        self._now_sum += seconds * times
        self._now[math.floor(math.log(max(seconds, _MIN_SECONDS)) / _WIDTH)] += times
        if target:
            self._now_with_target += times
            self._now_met += times * (seconds <= target)

    def end_frame(self) -> None:
        self._frames.append((self._now, self._now_with_target, self._now_met, self._now_sum))
        self._counts += self._now
        self._with_target += self._now_with_target
        self._met += self._now_met
        self._begin()

    def drop_frame(self) -> None:
        counts, with_target, met, _ = self._frames.popleft()
        self._counts -= counts
        self._with_target -= with_target
        self._met -= met

    def figures(self) -> Latencies:
        count = self._counts.total()
        if not count:
            return Latencies()
        p50, p95 = self._percentiles(count, (0.5, 0.95))
        mean = _short(math.fsum(one[3] for one in self._frames) / count)
        return Latencies(count, p50, p95, self._with_target, self._met, mean)

    def _percentiles(self, count: int, shares: tuple[float, ...]) -> list[float]:
        found: list[float] = []
        passed, left = 0, list(shares)
        for width_class in sorted(self._counts):
            passed += self._counts[width_class]
            while left and passed >= left[0] * count:
                found.append(_short(math.exp((width_class + 0.5) * _WIDTH)))
                left.pop(0)
        return found


class Recent:
    """Counts of the frames in a window of so many seconds."""

    def __init__(self, seconds: float):
        self._seconds = seconds
        self.ttft, self.itl = RecentLatencies(), RecentLatencies()
        self._frames: deque[tuple[float, float, int, int, int]] = deque()  # start, end, prompt, output, requests

    def end_frame(self, start: float, end: float, prompt: int, output: int, requests: int) -> Rates:
        """Add a frame with its prompt tokens, output tokens and ended requests; return the rates of the window."""
        self._frames.append((start, end, prompt, output, requests))
        for one in (self.ttft, self.itl):
            one.end_frame()
        while len(self._frames) > 1 and end - self._frames[0][0] > self._seconds:
            self._frames.popleft()
            for one in (self.ttft, self.itl):
                one.drop_frame()
        seconds = end - self._frames[0][0]
        if seconds <= 0:
            return Rates()
        prompts, outputs, ended = (_short(sum(one[index] for one in self._frames) / seconds) for index in (2, 3, 4))
        return Rates(_short(seconds), prompts, outputs, ended, self.ttft.figures(), self.itl.figures())


def _short(value: float) -> float:
    """Round to four digits, enough to be drawn."""
    return float(f"{value:.4g}")
