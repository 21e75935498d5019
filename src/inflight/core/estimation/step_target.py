"""How long may a step with background work in it be, such that foreground work hardly notices?

Two things would be noticed. The gaps between tokens: a step beside foreground decodes may take as long as the 99th
percentile of what foreground work takes by itself, for then that percentile stays what it is. The wait of newcomers:
whoever comes while a step runs waits for its end, half a step on average, and that may be no more than a small share of
the 99th percentile of the foreground's own times to the first token.

Within that a step is at most half as long as a full one, for most of what long steps gain is gained by then; and it is
shorter when the forecast has more newcomers coming than usual. What they wait grows with the step's length, what short
steps lose falls with it, and the sum is least where the length goes with one over the root of their rate. Holding
online latency while offline work fills the step is HyGen's aim (arXiv 2501.14808), which profiles for it; here it is
learnt from the steps themselves. Knows seconds and rates; not what lanes or plans are.
"""

from __future__ import annotations

import math

from inflight.core.estimation.quantile import Quantile

ALLOWED = 0.06  # share of its 99th percentile that newcomers wait longer on average, and that gaps may grow by
HIGH = 0.99
ENOUGH = 20.0  # requests of a lane, or gaps, before their percentile is believed
GAPS, REQUESTS = 5000.0, 500.0  # memories of the percentiles
SHORTEST = 0.5  # least factor that a forecast burst leaves
NEARLY_NEVER = 1e-3  # arrivals per second that count as none
SMOOTHING = 0.01  # per arrival, of the mean that the factor is relative to


class StepTarget:
    def __init__(self) -> None:
        self._gaps = Quantile(HIGH, GAPS)
        self._first_tokens: dict[str, Quantile] = {}
        self._usual = 0.0  # 1/√rate as newcomers met it, on average; 0 before the first

    def gap(self, seconds: float, streams: int) -> None:
        """A step's foreground work took so long by itself, and so many running streams waited for it."""
        self._gaps.observe(seconds, streams)

    def first_token(self, lane: str, seconds: float) -> None:
        """A foreground request had its first token so long after it came."""
        self._first_tokens.setdefault(lane, Quantile(HIGH, REQUESTS)).observe(seconds)

    def arrives(self, rate: float) -> None:
        """A foreground request comes; rate: what was forecast at that moment, per second."""
        if rate > 0:
            met = 1.0 / math.sqrt(rate)
            self._usual = met if not self._usual else self._usual + SMOOTHING * (met - self._usual)

    def seconds(self, streams: bool, rate: float, full_step: float) -> float:
        """streams: whether running foreground streams wait for the step. rate: foreground arrivals per second, as
        forecast. full_step: what a step of the whole budget takes; half of it is allowed until enough is known."""
        newcomers = self._for_newcomers(rate, full_step)
        if not streams:
            return newcomers
        own = self._gaps.value() if self._gaps.weight >= ENOUGH else full_step / 2
        assert own is not None
        return min(newcomers, (1 + ALLOWED) * own)

    def _for_newcomers(self, rate: float, full_step: float) -> float:
        if not self._usual or rate < NEARLY_NEVER:
            return math.inf
        steady = full_step / 2
        for one in self._first_tokens.values():
            percentile = one.value()
            if percentile is not None and one.weight >= ENOUGH:
                # It was measured with such steps, half a step of it is their own doing: it is own + T/2, and
                # T/2 = ALLOWED · own gives T.
                steady = min(steady, 2 * ALLOWED * percentile / (1 + ALLOWED))
        return steady * min(1.0, max(SHORTEST, 1.0 / math.sqrt(rate) / self._usual))
