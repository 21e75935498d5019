"""Arrival processes: the times of requests, in seconds after the workload's beginning.

`str()` of a process is the form that `parse_arrivals` reads.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count, repeat
from random import Random
from typing import Protocol

from inflight.workload.workload import WorkloadError

FORMS = (
    "poisson:RATE, gamma:RATE:BURSTINESS, constant:RATE, ramp:FIRST-LAST:SECONDS, daily:LOW-HIGH:HOURS (rates in "
    "requests per second), or at-once"
)


class Arrivals(Protocol):
    def times(self, rng: Random) -> Iterator[float]:
        """Yield arrival times in order, without end."""


@dataclass(frozen=True, slots=True)
class Poisson:
    """Independent arrivals, `rate` per second on average."""

    rate: float

    def __post_init__(self) -> None:
        _above_zero("rate", self.rate)

    def __str__(self) -> str:
        return f"poisson:{self.rate:g}"

    def times(self, rng: Random) -> Iterator[float]:
        now = 0.0
        while True:
            now += rng.expovariate(self.rate)
            yield now


@dataclass(frozen=True, slots=True)
class Gamma:
    """Gaps from a gamma distribution with mean 1/rate. burstiness: its shape, as in `vllm bench serve`: 1 is Poisson,
    less is burstier, more is smoother; the gaps' coefficient of variation is 1/sqrt(burstiness)."""

    rate: float
    burstiness: float

    def __post_init__(self) -> None:
        _above_zero("rate", self.rate)
        _above_zero("burstiness", self.burstiness)

    def __str__(self) -> str:
        return f"gamma:{self.rate:g}:{self.burstiness:g}"

    def times(self, rng: Random) -> Iterator[float]:
        now, scale = 0.0, 1 / (self.rate * self.burstiness)
        while True:
            now += rng.gammavariate(self.burstiness, scale)
            yield now


@dataclass(frozen=True, slots=True)
class Constant:
    """One every 1/rate seconds, the first at 0."""

    rate: float

    def __post_init__(self) -> None:
        _above_zero("rate", self.rate)

    def __str__(self) -> str:
        return f"constant:{self.rate:g}"

    def times(self, rng: Random) -> Iterator[float]:
        return (number / self.rate for number in count())


@dataclass(frozen=True, slots=True)
class Ramp:
    """Poisson arrivals whose rate goes in a straight line from `first` to `last` per second within `seconds`, and stays
    there. Times are those of a process of rate 1 under the inverse of the cumulative rate."""

    first: float
    last: float
    seconds: float

    def __post_init__(self) -> None:
        if not 0 <= self.first < math.inf:
            raise WorkloadError(
                f"The ramp's first rate is {self.first:g}; give a number from 0, in requests per second."
            )
        _above_zero("last rate", self.last)
        _above_zero("seconds", self.seconds)

    def __str__(self) -> str:
        return f"ramp:{self.first:g}-{self.last:g}:{self.seconds:g}"

    def times(self, rng: Random) -> Iterator[float]:
        slope = (self.last - self.first) / self.seconds
        until_flat = (self.first + self.last) / 2 * self.seconds
        expected = 0.0
        while True:
            expected += rng.expovariate(1.0)
            if expected <= until_flat:
                rate_then = math.sqrt(max(0.0, self.first**2 + 2 * slope * expected))
                yield 2 * expected / (self.first + rate_then)
            else:
                yield self.seconds + (expected - until_flat) / self.last


@dataclass(frozen=True, slots=True)
class Daily:
    """Poisson arrivals whose rate swings between `low` and `high` per second as a sine of so many hours, from its
    lowest point."""

    low: float
    high: float
    hours: float = 24.0

    def __post_init__(self) -> None:
        if not 0 <= self.low < math.inf:
            raise WorkloadError(f"The day's low rate is {self.low:g}; give a number from 0, in requests per second.")
        _above_zero("high rate", self.high)
        _above_zero("hours", self.hours)
        if self.low > self.high:
            raise WorkloadError(f"The day's rates go from {self.low:g} to {self.high:g}; give the lower one first.")

    def __str__(self) -> str:
        return f"daily:{self.low:g}-{self.high:g}:{self.hours:g}"

    def times(self, rng: Random) -> Iterator[float]:
        now = 0.0
        while True:  # thinned out of arrivals at the high rate (Lewis and Shedler, 1979)
            now += rng.expovariate(self.high)
            if rng.random() * self.high <= self.rate_at(now):
                yield now

    def rate_at(self, seconds: float) -> float:
        """Return the requests/s at a time after the lowest point."""
        swing = (1 - math.cos(2 * math.pi * seconds / (3600 * self.hours))) / 2
        return self.low + (self.high - self.low) * swing


@dataclass(frozen=True, slots=True)
class AtOnce:
    """All at the beginning; concurrency or the server limits them."""

    def __str__(self) -> str:
        return "at-once"

    def times(self, rng: Random) -> Iterator[float]:
        return repeat(0.0)


def parse_arrivals(text: str) -> Arrivals:
    """Read `poisson:5`, `gamma:5:0.3`, `constant:5`, `ramp:1-10:60`, `daily:5-50`, `at-once`. Raises WorkloadError."""
    name, *rest = text.strip().split(":")
    if name in ("ramp", "daily") and rest:
        rest = [*rest[0].split("-"), *rest[1:]]
    try:
        numbers = [float(part) for part in rest]
    except ValueError:
        raise _unknown(text) from None
    match name, numbers:
        case "poisson", [rate]:
            return Poisson(rate)
        case "gamma", [rate, burstiness]:
            return Gamma(rate, burstiness)
        case "constant", [rate]:
            return Constant(rate)
        case "ramp", [first, last, seconds]:
            return Ramp(first, last, seconds)
        case "daily", [low, high, *hours] if len(hours) <= 1:
            return Daily(low, high, *hours)
        case "at-once", []:
            return AtOnce()
    raise _unknown(text)


def _unknown(text: str) -> WorkloadError:
    return WorkloadError(f"Arrivals {text!r} are of no known form; give {FORMS}.")


def _above_zero(name: str, value: float) -> None:
    if not 0 < value < math.inf:
        raise WorkloadError(f"The arrivals' {name} is {value:g}; give a number above 0. Forms: {FORMS}.")
