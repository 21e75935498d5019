"""A histogram that is cheap to fill and can be shown under several sets of buckets.

Knows numbers; names and labels are given to it when it is shown. Filled in the engine's turn, once per token: one
bisection and two additions, without a lock (there is one writer at a time; a reader copies the counts in one go).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence


class Histogram:
    __slots__ = ("_bounds", "_counts", "_sum")

    def __init__(self, *shown: Sequence[float]):
        """shown: the sets of upper bounds under which it will be shown; it keeps all of them apart."""
        self._bounds = sorted({float(bound) for bounds in shown for bound in bounds})
        self._counts = [0] * (len(self._bounds) + 1)
        self._sum = 0.0

    def observe(self, value: float) -> None:
        self._counts[bisect_left(self._bounds, value)] += 1
        self._sum += value

    def sum(self) -> float:
        return self._sum

    def buckets(self, bounds: Sequence[float]) -> list[tuple[str, float]]:
        """Cumulative counts at these bounds, which must be among those it was made with, and at infinity."""
        counts = self._counts.copy()
        wanted = {float(bound) for bound in bounds}
        below, found = 0, []
        for bound, count in zip(self._bounds, counts, strict=False):
            below += count
            if bound in wanted:
                found.append((repr(bound), float(below)))
        if len(found) != len(wanted):
            raise ValueError(f"the bounds {sorted(wanted - set(self._bounds))} are not kept apart by this histogram")
        return [*found, ("+Inf", float(below + counts[-1]))]

    @classmethod
    def together(cls, histograms: Iterable[Histogram]) -> Histogram:
        """The sum of histograms that were made with the same bounds."""
        every = list(histograms)
        total = cls(every[0]._bounds)
        total._counts = [sum(column) for column in zip(*(one._counts.copy() for one in every), strict=True)]
        total._sum = sum(one._sum for one in every)
        return total
