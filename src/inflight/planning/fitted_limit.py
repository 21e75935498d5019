"""The highest rate that meets the SLOs, from all trials near it: a line through ln(latency) by ln(rate) for each SLO.

A trial's p99 varies by several percent between rates that differ by one percent, whatever requests are drawn: which
replica takes a long prompt changes all that follows. So no single trial decides, nor the last two of a bisection.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from operator import mul

from inflight.metrics.slo import Slo
from inflight.planning.search import STEEPNESS
from inflight.planning.simulation import SHARES, Trial

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
        factors = {slo: values[slo] / one.values[slo] for slo in self.lines if one.values[slo] > 0}
        by_class = {name: _scaled(found, factors, name) for name, found in one.by_class.items()}
        percentiles = _scaled(one.percentiles, factors, "")
        return replace(one, rate=rate, values=values, percentiles=percentiles, by_class=by_class)


def _scaled(
    percentiles: Mapping[str, tuple[float, ...]], factors: Mapping[Slo, float], traffic: str
) -> dict[str, tuple[float, ...]]:
    """Return the latencies of a class ("": of all) times the factors of their SLOs, each percentile times that of the
    nearest one; without an SLO of the class those of all count."""
    is_decoded = percentiles.get("e2e") != percentiles.get("ttft")

    def factor(metric: str, share: float) -> float:
        metric = metric if is_decoded or metric != "e2e" else "ttft"
        found = [slo for slo in factors if slo.metric == metric and slo.traffic in ("", traffic)]
        found = [slo for slo in found if slo.traffic == traffic] or found
        return factors[min(found, key=lambda slo: abs(slo.share - share))] if found else 1.0

    def scaled(metric: str, found: tuple[float, ...]) -> tuple[float, ...]:
        each = (value * factor(metric, share) for value, share in zip(found, SHARES, strict=True))
        return tuple(accumulate(each, max))  # none is below a lower one

    return {metric: scaled(metric, found) for metric, found in percentiles.items()}


def fitted_limit(trials: Sequence[Trial]) -> FittedLimit:
    """Fit trials at rates near the limit, which is below each rate at which the queue grew: halfway to the highest that
    was served, or just below where that is near, or none was."""
    served = [one for one in trials if not one.is_exhausted]
    lines: dict[Slo, Line] = {}
    for slo in trials[0].values:
        points = [(math.log(one.rate), math.log(one.values[slo])) for one in served if 0 < one.values[slo] < math.inf]
        if points:
            lines[slo] = _line(points, math.log(slo.limit))
    limits = [JUST * line.rate(slo.limit) for slo, line in lines.items()]
    if len(served) < len(trials):
        grew = min(one.rate for one in trials if one.is_exhausted)
        highest = max((one.rate for one in served if one.rate < grew), default=grew)
        limits.append(min(BELOW * grew, math.sqrt(highest * grew)))
    return FittedLimit(trials, min(limits, default=max(one.rate for one in trials)), lines)


def _line(points: Sequence[tuple[float, float]], limit: float) -> Line:
    """Fit a line near a limit: latencies that are further from it count less, since near saturation no line is
    straight."""
    weights = [1 / (1 + ((y - limit) / CLOSE) ** 2) for _, y in points]
    whole = math.fsum(weights)
    centre, level = (math.fsum(map(mul, weights, values)) / whole for values in zip(*points, strict=True))
    weighted = [(weight, x - centre, y - level) for weight, (x, y) in zip(weights, points, strict=True)]
    spread, rise = (math.fsum(values) for values in zip(*((w * x * x, w * x * y) for w, x, y in weighted), strict=True))
    return Line(centre, level, max(FLATTEST, (rise + TRUST * STEEPNESS) / (spread + TRUST)))
