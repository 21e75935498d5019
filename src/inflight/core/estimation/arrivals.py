"""How many requests will come in the next moment? Rates of several memories, each believed as far as it foretold.

Each arrival counts 1 and fades; the sum over the time that it stands for is a rate. A short memory jumps with a burst's
first arrivals (traffic that comes in bursts makes each arrival announce the next, as in a Hawkes process), a long one
keeps the usual level. Every memory is scored by the likelihood that it gave to what came: a wait of this length, then
these arrivals (the log-likelihood of a point process, Σ log rate - ∫ rate). Arrivals within a moment of the first one
are judged by the rate before it, since no step could have been planned in between: else a memory that only knows that
clumps are dense would win. The forecast is the memories' mean, weighted by the exponential of these scores (a Bayesian
mixture, with forgetting, since traffic may change its kind). Knows times, nothing of requests.
"""

from __future__ import annotations

import math

SPANS = (0.5, 2.0, 10.0, 60.0, 600.0)  # seconds after which an arrival counts for 1/e
MOMENT = 0.1  # seconds, about a step: arrivals so close are foretold together or not at all
FLOOR = 0.1  # share of the longest memory in every rate: none may be sure that nobody comes
FORGETTING = 0.98  # of the scores, per arrival
LIKELY = math.log(2.0)  # arrivals expected, at which one is as likely as not: 1 - exp(-0.69) is a half


class Forecast:
    __slots__ = ("_before", "_counts", "_first", "_last", "_opened", "_scores")

    def __init__(self) -> None:
        self._counts = [0.0] * len(SPANS)
        self._scores = [0.0] * len(SPANS)
        self._before = [1.0] * len(SPANS)  # rates before the first arrival of this moment
        self._first = self._last = self._opened = -math.inf

    def arrived(self, now: float) -> None:
        if self._first == -math.inf:
            self._first = self._last = self._opened = now
        else:
            self._score(max(now, self._last))
        gap = max(0.0, now - self._last)
        self._counts = [count * math.exp(-gap / span) + 1.0 for count, span in zip(self._counts, SPANS, strict=True)]
        self._last = max(now, self._last)

    def _score(self, now: float) -> None:
        gap = now - self._last
        if now - self._opened >= MOMENT:
            meant = self._expected_in(gap)
            self._opened, self._before = now, self._rates(now)
            self._scores = [FORGETTING * score for score in self._scores]
        else:
            meant = [rate * gap for rate in self._before]
        self._scores = [
            score + math.log(rate) - one for score, rate, one in zip(self._scores, self._before, meant, strict=True)
        ]

    def rate(self, now: float) -> float:
        """Arrivals per second, as far as the past tells; 0 before the first."""
        if self._first == -math.inf:
            return 0.0
        best = max(self._scores)
        weights = [math.exp(score - best) for score in self._scores]
        return sum(w * rate for w, rate in zip(weights, self._rates(now), strict=True)) / sum(weights)

    def expected(self, now: float, horizon: float) -> float:
        """Arrivals from now until `horizon` seconds later; the horizon is taken to be short."""
        return self.rate(now) * horizon

    def _rates(self, now: float) -> list[float]:
        """Of each memory."""
        age = max(0.0, now - self._last)
        windows = self._windows(max(now, self._last))
        rates = [
            count * math.exp(-age / span) / window
            for count, span, window in zip(self._counts, SPANS, windows, strict=True)
        ]
        return [max(1e-300, (1 - FLOOR) * rate + FLOOR * rates[-1]) for rate in rates]

    def _expected_in(self, gap: float) -> list[float]:
        """What each memory expected, after the latest arrival, for so many seconds: its rate, fading."""
        windows = self._windows(self._last + gap)
        meant = [
            count * span * (1 - math.exp(-gap / span)) / window
            for count, span, window in zip(self._counts, SPANS, windows, strict=True)
        ]
        return [(1 - FLOOR) * one + FLOOR * meant[-1] for one in meant]

    def _windows(self, now: float) -> list[float]:
        """Seconds that the counts stand for: the span, once it has been lived through."""
        lived = now - self._first
        return [max(SPANS[0], span * (1 - math.exp(-lived / span))) for span in SPANS]
