"""The highest rate that meets the SLOs, from all trials near it: a line through ln(latency) by ln(rate) for each SLO.

A trial's p99 varies by several percent between rates that differ by one percent, whatever requests are drawn: which
replica takes a long prompt changes all that follows. So no single trial decides, nor the last two of a bisection.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from operator import mul

from inflight.metrics.slo import Slo
from inflight.planning.search import STEEPNESS
from inflight.planning.simulation import Trial

TRUST = 0.003  # in the expected steepness: as much as in trials whose ln(rate) has this sum of squares
FLATTEST = 0.8  # steepness; where an SLO on TTFT is near the time of a long prompt alone it is about 1
CLOSE = 0.2  # of ln(latency) from its limit: a trial at this distance counts half
BELOW = 0.98  # of a rate at which the queue grows without end
JUST = 0.999  # of the limit: rounded values meet the SLO


@dataclass(frozen=True, slots=True)
class Line:
    """ln(latency) = level + steepness · (ln(rate) - centre)."""

    centre: float
    level: float
    steepness: float

    def at(self, rate: float) -> float:
        """Return the latency in seconds."""
        return math.exp(self.level + self.steepness * (math.log(rate) - self.centre))

    def rate(self, latency: float) -> float:
        """Return the requests/s with this latency, in seconds."""
        return math.exp(self.centre + (math.log(latency) - self.level) / self.steepness)


@dataclass(frozen=True, slots=True)
class FittedLimit:
    """The limit that several trials have together. limit: requests/s that meet the SLOs at most. lines: of each SLO."""

    trials: Sequence[Trial]
    limit: float
    lines: Mapping[Slo, Line]

    def at(self, rate: float) -> Trial:
        """Return the trial nearest to a rate, with the SLOs' latencies that all trials say there, and other percentiles
        of these in proportion."""
        served = [one for one in self.trials if not one.is_exhausted] or self.trials
        one = min(served, key=lambda one: abs(math.log(one.rate / rate)))
        values = {slo: self.lines[slo].at(rate) if slo in self.lines else value for slo, value in one.values.items()}
        of_all = sorted((slo for slo in self.lines if not slo.traffic), key=lambda slo: slo.share)
        factors: dict[str, float] = {slo.metric: values[slo] / one.values[slo] for slo in of_all if one.values[slo] > 0}
        if one.percentiles.get("e2e") == one.percentiles.get("ttft"):  # nothing is decoded
            factors["e2e"] = factors.get("ttft", 1.0)
        percentiles = {
            name: tuple(value * factors.get(name, 1.0) for value in found) for name, found in one.percentiles.items()
        }
        return replace(one, rate=rate, values=values, percentiles=percentiles)


def fitted_limit(trials: Sequence[Trial]) -> FittedLimit:
    """Fit trials at rates near the limit. Where all are saturated, the limit is below all."""
    served = [one for one in trials if not one.is_exhausted]
    lines: dict[Slo, Line] = {}
    for slo in trials[0].values:
        points = [(math.log(one.rate), math.log(one.values[slo])) for one in served if 0 < one.values[slo] < math.inf]
        if points:
            lines[slo] = _line(points, math.log(slo.limit))
    above = [BELOW * one.rate for one in trials if one.is_exhausted]
    limit = min(
        [JUST * line.rate(slo.limit) for slo, line in lines.items()] + above, default=max(one.rate for one in trials)
    )
    return FittedLimit(trials, limit, lines)


def _line(points: Sequence[tuple[float, float]], limit: float) -> Line:
    """Fit a line near a limit: latencies that are further from it count less, since near saturation no line is
    straight."""
    weights = [1 / (1 + ((y - limit) / CLOSE) ** 2) for _, y in points]
    whole = math.fsum(weights)
    centre, level = (math.fsum(map(mul, weights, values)) / whole for values in zip(*points, strict=True))
    weighted = [(weight, x - centre, y - level) for weight, (x, y) in zip(weights, points, strict=True)]
    spread, rise = (math.fsum(values) for values in zip(*((w * x * x, w * x * y) for w, x, y in weighted), strict=True))
    return Line(centre, level, max(FLATTEST, (rise + TRUST * STEEPNESS) / (spread + TRUST)))
