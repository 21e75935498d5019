"""How many requests will come in the next moment? Two rates, one that follows bursts and one that remembers.

Each arrival counts 1 and fades; the sum over the fading time is a rate. The short rate jumps with a burst's first
arrivals (traffic that comes in bursts makes each arrival announce the next, as in a Hawkes process), the long one keeps
the usual level; the greater of the two is believed. Knows times, nothing of requests.
"""

from __future__ import annotations

import math

SHORT, LONG = 1.0, 30.0  # seconds after which an arrival counts for 1/e


class Forecast:
    __slots__ = ("_counts", "_since")

    def __init__(self) -> None:
        self._counts = [0.0, 0.0]
        self._since = -math.inf

    def arrived(self, now: float) -> None:
        self._counts = [count + 1.0 for count in self._faded(now)]
        self._since = max(now, self._since)

    def expected(self, now: float, horizon: float) -> float:
        """Arrivals from now until `horizon` seconds later."""
        return max(count / span for count, span in zip(self._faded(now), (SHORT, LONG), strict=True)) * horizon

    def _faded(self, now: float) -> list[float]:
        age = max(0.0, now - self._since)
        return [count * math.exp(-age / span) for count, span in zip(self._counts, (SHORT, LONG), strict=True)]
