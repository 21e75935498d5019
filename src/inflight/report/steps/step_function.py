"""A value that holds until it changes: queue length, blocks held, tokens of a step. Knows no pixels."""

from __future__ import annotations

import bisect
from array import array
from collections.abc import Iterable
from typing import NamedTuple


class Column(NamedTuple):
    """What a stretch of time held: its middle, and the least, the mean over time and the greatest value in it."""

    time: float
    low: float
    mean: float
    high: float


class StepFunction:
    """Zero before its first change."""

    def __init__(self) -> None:
        self.times = array("d")
        self.values = array("d")

    @classmethod
    def of_changes(cls, changes: Iterable[tuple[float, float]]) -> StepFunction:
        """From (time, by how much), in any order."""
        function, value = cls(), 0.0
        for time, change in sorted(changes):
            value += change
            function.set(time, value)
        return function

    def set(self, time: float, value: float) -> None:
        """From this time on; times rise, and the last word on a time holds."""
        if self.times and time <= self.times[-1]:
            self.values[-1] = value
        elif not self.values or value != self.values[-1]:
            self.times.append(time)
            self.values.append(value)

    def __len__(self) -> int:
        return len(self.times)

    def at(self, time: float) -> float:
        place = bisect.bisect_right(self.times, time) - 1
        return self.values[place] if place >= 0 else 0.0

    @property
    def greatest(self) -> float:
        return max(self.values, default=0.0)

    def mean(self, start: float, end: float) -> float:
        """Over time."""
        return self.columns(start, end, 1)[0].mean

    def columns(self, start: float, end: float, number: int) -> list[Column]:
        """`number` equal stretches from start to end; nothing is dropped: each tells all that it held."""
        width = (end - start) / number
        found = []
        place = bisect.bisect_right(self.times, start)
        value = self.values[place - 1] if place else 0.0
        for index in range(number):
            left = start + index * width
            right = end if index == number - 1 else left + width
            low = high = value
            total, since = 0.0, left
            while place < len(self.times) and self.times[place] < right:
                total += value * (self.times[place] - since)
                since, value = self.times[place], self.values[place]
                low, high = min(low, value), max(high, value)
                place += 1
            total += value * (right - since)
            found.append(Column((left + right) / 2, low, total / (right - left) if right > left else value, high))
        return found
