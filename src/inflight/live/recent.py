"""Figures over the last seconds: rates, and percentiles that cost the same whatever has happened.

Latencies are counted in classes that are 5 % wide, frame by frame; those of frames that are too old are taken out
again. So a percentile is right to 2.5 %, and a thousand tokens a second cost no sorting.
"""

from __future__ import annotations

import math
from collections import Counter, deque

from inflight.live.frames import Latencies, Rates

_WIDTH = math.log(1.05)
_LEAST = 1e-5  # seconds


class RecentLatencies:
    def __init__(self) -> None:
        self._counts: Counter[int] = Counter()  # class → latencies, over the window
        self._frames: deque[tuple[Counter[int], int, int]] = deque()  # and of each frame; with a target, that kept it
        self._with_target = self._met = 0
        self._begin()

    def _begin(self) -> None:
        self._now: Counter[int] = Counter()
        self._now_with_target = self._now_met = 0

    def add(self, seconds: float, target: float, times: int = 1) -> None:
        """target: 0: there is none."""
        self._now[math.floor(math.log(max(seconds, _LEAST)) / _WIDTH)] += times
        if target:
            self._now_with_target += times
            self._now_met += times * (seconds <= target)

    def end_frame(self) -> None:
        self._frames.append((self._now, self._now_with_target, self._now_met))
        self._counts += self._now
        self._with_target += self._now_with_target
        self._met += self._now_met
        self._begin()

    def drop_frame(self) -> None:
        """The oldest one."""
        counts, with_target, met = self._frames.popleft()
        self._counts -= counts
        self._with_target -= with_target
        self._met -= met

    def figures(self) -> Latencies:
        count = self._counts.total()
        if not count:
            return Latencies()
        p50, p95 = self._percentiles(count, (0.5, 0.95))
        return Latencies(count, p50, p95, self._with_target, self._met)

    def _percentiles(self, count: int, shares: tuple[float, ...]) -> list[float]:
        found: list[float] = []
        passed, left = 0, list(shares)
        for place in sorted(self._counts):
            passed += self._counts[place]
            while left and passed >= left[0] * count:
                found.append(_short(math.exp((place + 0.5) * _WIDTH)))
                left.pop(0)
        return found


class Recent:
    """Counts of the frames that lie within the window. seconds: how long that is."""

    def __init__(self, seconds: float):
        self._seconds = seconds
        self.ttft, self.itl = RecentLatencies(), RecentLatencies()
        self._frames: deque[tuple[float, float, int, int, int]] = deque()  # start, end, prompt, output, requests

    def end_frame(self, start: float, end: float, prompt: int, output: int, requests: int) -> Rates:
        """Tokens computed of prompts, tokens given out, requests ended."""
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
        prompts, outputs, ended = (_short(sum(one[place] for one in self._frames) / seconds) for place in (2, 3, 4))
        return Rates(_short(seconds), prompts, outputs, ended, self.ttft.figures(), self.itl.figures())


def _short(value: float) -> float:
    """Four digits are enough to be drawn."""
    return float(f"{value:.4g}")
