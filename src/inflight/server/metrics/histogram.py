"""Histograms that are cheap to fill and can be shown under several sets of buckets, and the bounds of buckets.

The engine's thread fills them, once a token: one bisection and two additions, without a lock. There is one writer at a
time; a reader copies the counts in one go.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence

# Seconds. Steps of a half and less, so that a percentile read between two bounds is not far off.
SECONDS = (
    *(0.001, 0.002, 0.003, 0.005, 0.0075, 0.01, 0.015, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 0.75),
    *(1.0, 1.5, 2.0, 3.0, 5.0, 7.5, 10.0, 15.0, 20.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1800.0),
)
POWERS = tuple(2**exponent for exponent in range(15))  # 1 … 16384: tokens and sequences of a step

# As dashboards that were made for vLLM expect them.
VLLM_FIRST_TOKEN = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5),
    *(10.0, 20.0, 40.0, 80.0, 160.0, 640.0, 2560.0),
)
VLLM_NEXT_TOKEN = (
    *(0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5),
    *(10.0, 20.0, 40.0, 80.0),
)
VLLM_REQUEST = (
    *(0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0),
    *(120.0, 240.0, 480.0, 960.0, 1920.0, 7680.0),
)
VLLM_STEP_TOKENS = (1, *(2**exponent for exponent in range(3, 15)))
VLLM_SAMPLES = (1, 2, 5, 10, 20)


def lengths(maximum: int) -> tuple[int, ...]:
    """Return the bounds 1, 2, 5, 10, 20, 50 … up to `maximum`."""
    bounds: list[int] = []
    scale = 1
    while scale <= maximum:
        bounds += [step * scale for step in (1, 2, 5) if step * scale <= maximum]
        scale *= 10
    return tuple(bounds)


class Histogram:
    __slots__ = ("_bounds", "_counts", "_sum")

    def __init__(self, *shown: Sequence[float]):
        """shown: the sets of upper bounds under which it will be shown."""
        self._bounds = sorted({float(bound) for bounds in shown for bound in bounds})
        self._counts = [0] * (len(self._bounds) + 1)
        self._sum = 0.0

    def observe(self, value: float) -> None:
        self._counts[bisect_left(self._bounds, value)] += 1
        self._sum += value

    def sum(self) -> float:
        return self._sum

    def buckets(self, bounds: Sequence[float]) -> list[tuple[str, float]]:
        """Return cumulative counts at these bounds, which must be among those it was made with, and at infinity."""
        counts = self._counts.copy()
        wanted = {float(bound) for bound in bounds}
        below, found = 0, []
        for bound, count in zip(self._bounds, counts, strict=False):
            below += count
            if bound in wanted:
                found.append((repr(bound), float(below)))
        if len(found) != len(wanted):
            raise ValueError(f"the bounds {sorted(wanted - set(self._bounds))} are not among those of this histogram")
        return [*found, ("+Inf", float(below + counts[-1]))]

    @classmethod
    def together(cls, histograms: Iterable[Histogram]) -> Histogram:
        """Return the sum of histograms that were made with the same bounds."""
        every = list(histograms)
        total = cls(every[0]._bounds)
        total._counts = [sum(column) for column in zip(*(one._counts.copy() for one in every), strict=True)]
        total._sum = sum(one._sum for one in every)
        return total
