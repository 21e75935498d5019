"""Values over time: functions that hold until they change, and series with an entry for each step."""

from __future__ import annotations

import bisect
from array import array
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import NamedTuple


class Column(NamedTuple):
    """A stretch of time: its middle, and the least, the mean over time and the greatest value in it."""

    time: float
    low: float
    mean: float
    high: float


class StepFunction:
    """A function of time that is zero before its first change."""

    def __init__(self) -> None:
        self.times = array("d")
        self.values = array("d")

    @classmethod
    def of_changes(cls, changes: Iterable[tuple[float, float]]) -> StepFunction:
        """Make a function of (time, difference), in any order."""
        function, value = cls(), 0.0
        for time, change in sorted(changes):
            value += change
            function.set(time, value)
        return function

    def set(self, time: float, value: float) -> None:
        """Set the value from this time on; times must rise, and of equal ones the last holds."""
        if self.times and time <= self.times[-1]:
            self.values[-1] = value
        elif not self.values or value != self.values[-1]:
            self.times.append(time)
            self.values.append(value)

    def __len__(self) -> int:
        return len(self.times)

    def at(self, time: float) -> float:
        index = bisect.bisect_right(self.times, time) - 1
        return self.values[index] if index >= 0 else 0.0

    @property
    def greatest(self) -> float:
        return max(self.values, default=0.0)

    def mean(self, start: float, end: float) -> float:
        """Return the mean over time."""
        return self.columns(start, end, 1)[0].mean

    def columns(self, start: float, end: float, number: int) -> list[Column]:
        """Return `number` equal stretches from start to end, each with all of its values."""
        width = (end - start) / number
        found = []
        at = bisect.bisect_right(self.times, start)
        value = self.values[at - 1] if at else 0.0
        for index in range(number):
            left = start + index * width
            right = end if index == number - 1 else left + width
            low = high = value
            total, since = 0.0, left
            while at < len(self.times) and self.times[at] < right:
                total += value * (self.times[at] - since)
                since, value = self.times[at], self.values[at]
                low, high = min(low, value), max(high, value)
                at += 1
            total += value * (right - since)
            found.append(Column((left + right) / 2, low, total / (right - left) if right > left else value, high))
        return found


def _floats() -> array[float]:
    return array("d")


def _counts() -> array[int]:
    return array("q")


@dataclass(slots=True)
class StepSeries:
    """began: when the step could begin: its plan, or the end of the step before it where that was later (depth 2).
    ended: its commit. Both in seconds on the engine's clock. seconds: as the executor measured it.

    Token slots: prompt (first computed), recomputed (computed before a preemption), decode, padding, rejected (drafts).
    rows: sequences with a row. allocated, used: KV token slots, shared ones once. moved_out, moved_back: blocks copied
    to the host and back. failed: steps that broke.
    """

    began: array[float] = field(default_factory=_floats)
    ended: array[float] = field(default_factory=_floats)
    seconds: array[float] = field(default_factory=_floats)
    prompt: array[int] = field(default_factory=_counts)
    recomputed: array[int] = field(default_factory=_counts)
    decode: array[int] = field(default_factory=_counts)
    padding: array[int] = field(default_factory=_counts)
    rejected: array[int] = field(default_factory=_counts)
    rows: array[int] = field(default_factory=_counts)
    allocated: array[int] = field(default_factory=_counts)
    used: array[int] = field(default_factory=_counts)
    held_blocks: array[int] = field(default_factory=_counts)
    moved_out: int = 0
    moved_back: int = 0
    failed: int = 0

    def __len__(self) -> int:
        return len(self.ended)

    @property
    def start(self) -> float:
        return self.began[0]

    @property
    def end(self) -> float:
        return self.ended[-1]

    @property
    def busy(self) -> float:
        return sum(end - start for start, end in zip(self.began, self.ended, strict=True))

    def tokens(self, index: int) -> int:
        """Return the token slots of a step, padding included."""
        computed = self.prompt[index] + self.recomputed[index] + self.decode[index] + self.rejected[index]
        return computed + self.padding[index]

    def over_time(self, value: Callable[[int], float]) -> StepFunction:
        """Return value(index of a step) for as long as the step lasts; zero while none runs."""
        function = StepFunction()
        for index in range(len(self)):
            function.set(self.began[index], value(index))
            if index + 1 == len(self) or self.began[index + 1] > self.ended[index]:
                function.set(self.ended[index], 0.0)
        return function
