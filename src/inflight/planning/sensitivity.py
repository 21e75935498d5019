"""Find the measurements that would narrow a plan's interval the most.

A class of work is uncertain by its spread (`Machine.cases`), and the answer follows it by a derivative, which the
closed form gives: the rate that it expects with this class alone at its slow end. The product is the class's part of
the interval. With a class measured, its part is gone: of a rate r of a replica between a and b, r·(a/r)^(1-part) to
r·(b/r)^(1-part) are left, and the replicas follow from those.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from msgspec import Struct

from inflight.core.types.features import Features
from inflight.planning.ends import expected_rate
from inflight.planning.sizing import Candidate, TrialRunner, whole_engines
from inflight.planning.steady import mixed_step
from inflight.simulate.roofline import Roofline
from inflight.simulate.steps import StepModel

SHOWN = 2
MIN_PART = 0.05  # of the interval: below, a measurement is not worth its time


class Measurement(Struct, frozen=True, rename={"bound": "resource"}):
    """A measurement of one class of work. bound: that limits its steps: compute, bandwidth, link or launch. part: of
    the interval, from 0 to 1. replicas_interval: that would be left; None at its end: no number meets the SLOs.
    rate_interval: the same of the highest requests/s of a replica, at the slow and at the fast end."""

    bound: str
    part: float
    replicas_interval: tuple[int, int | None]
    rate_interval: tuple[float, float]


@dataclass(frozen=True, slots=True)
class ScaledWork:
    """A step model whose work with one bottleneck takes longer by a factor."""

    model: Roofline
    bound: str
    factor: float

    @property
    def name(self) -> str:
        return f"{self.model.name}, {self.bound} × {self.factor:.3g}"

    def seconds(self, features: Features) -> float:
        costs = self.model.costs(features)
        return sum(one.seconds * (self.factor if one.bound == self.bound else 1.0) for one in costs)

    def extrapolates(self, features: Features) -> str | None:
        return self.model.extrapolates(features)


def measurements(
    runner: TrialRunner, best: Candidate, replicas: int, low: int, high: int | None, rates: tuple[float, float]
) -> tuple[Measurement, ...]:
    """Return the measurements that would narrow the interval the most, the best first; none where the steps' classes
    are not known.

    Args:
        runner: Has the question and its traffic.
        best: The chosen machine with its settings.
        replicas, low, high: That are planned, and their interval.
        rates: The highest requests/s of a replica at the slow and at the fast end.
    """
    model = best.machine.model
    if not isinstance(model, Roofline) or not best.machine.cases or rates[0] == rates[1]:
        return ()
    typical, found = expected_rate(runner, best, model), dict[str, float]()
    demand = runner.question.demand.rate
    for bound, factor in _slow_factors(runner, best, model, best.machine.cases[0]).items():
        rate = expected_rate(runner, best, ScaledWork(model, bound, factor))
        found[bound] = max(0.0, math.log(typical / rate))
    whole = sum(found.values()) or 1.0
    parts = sorted(((drop / whole, bound) for bound, drop in found.items()), reverse=True)[:SHOWN]

    def measured(bound: str, part: float) -> Measurement:
        slow, fast = (best.rate * math.pow(rate / best.rate, 1 - part) for rate in rates)
        fewest = min(replicas, max(low, whole_engines(demand / fast)))
        most = None if high is None else max(replicas, min(high, whole_engines(demand / slow)))
        return Measurement(bound, part, (fewest, most), (slow, fast))

    return tuple(measured(bound, part) for part, bound in parts if part >= MIN_PART)


def _slow_factors(runner: TrialRunner, best: Candidate, model: Roofline, slow: StepModel) -> dict[str, float]:
    """Return the factor of each class's time at its slow end, in a typical step."""
    assert isinstance(slow, Roofline)
    rows = best.proposal.steady.rows
    fresh = runner.traffic.input_mean * (1 - runner.traffic.shared)
    step = mixed_step(runner.traffic, rows, rows * fresh / runner.traffic.output_mean)
    usual, slowest = dict[str, float](), dict[str, float]()
    for costs, sums in ((model.costs(step), usual), (slow.costs(step), slowest)):
        for one, typical in zip(costs, model.costs(step), strict=True):  # classes as they are typically
            sums[typical.bound] = sums.get(typical.bound, 0.0) + one.seconds
    return {bound: slowest[bound] / seconds for bound, seconds in usual.items() if seconds > 0}
