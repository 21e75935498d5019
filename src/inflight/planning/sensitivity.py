"""Find the measurements that would narrow a plan's interval the most.

A class of work is uncertain by its spread (`Machine.cases`), and steps are as much longer with this class alone at its
slow end as it has a share of their time. The product is the class's part of the interval. With a class measured, its
part is gone: of a rate r of a replica between a and b, r·(a/r)^(1-part) to r·(b/r)^(1-part) are left, and the replicas
follow from those.
"""

from __future__ import annotations

import math

from msgspec import Struct

from inflight.planning.candidate import Candidate, whole_engines
from inflight.planning.simulation import Trial
from inflight.planning.steady import mixed_step
from inflight.planning.traffic import Traffic
from inflight.planning.trial_runner import TrialRunner
from inflight.simulate.roofline import Roofline
from inflight.simulate.steps import StepModel

MAX_MEASUREMENTS = 2
MIN_PART = 0.05  # of the interval: below, a measurement is not worth its time


class Measurement(Struct, frozen=True, rename={"bound": "resource"}):
    """A measurement of one class of work. bound: that limits its steps: compute, bandwidth, link or launch. part: of
    the interval, from 0 to 1. replicas_interval: that would be left; None at its end: no number meets the SLOs.
    rate_interval: the same of the highest requests/s of a replica, at the slow and at the fast end."""

    bound: str
    part: float
    replicas_interval: tuple[int, int | None]
    rate_interval: tuple[float, float]


def measurements(
    runner: TrialRunner,
    best: Candidate,
    replicas: int,
    planned: Trial,
    low: int,
    high: int | None,
    rates: tuple[float, float],
) -> tuple[Measurement, ...]:
    """Return the measurements that would narrow the interval the most, the best first; none where the steps' classes
    are not known.

    Args:
        runner: Has the question and its traffic.
        best: The chosen machine with its settings.
        replicas, low, high: That are planned, and their interval.
        planned: The trial of the planned load, which says where the time of steps goes.
        rates: The highest requests/s of a replica at the slow and at the fast end.
    """
    model = best.machine.model
    if not isinstance(model, Roofline) or not best.machine.cases or rates[0] == rates[1]:
        return ()
    demand, shares = runner.question.demand.rate, planned.spent.by_bound
    factors = _slow_factors(runner.traffic, max(1.0, planned.spent.rows), model, best.machine.cases[0])
    found = {bound: share * max(0.0, factors.get(bound, 1.0) - 1.0) for bound, share in shares.items()}
    whole = sum(found.values()) or 1.0
    parts = sorted(((drop / whole, bound) for bound, drop in found.items()), reverse=True)[:MAX_MEASUREMENTS]

    def measured(bound: str, part: float) -> Measurement:
        slow, fast = (best.rate * math.pow(rate / best.rate, 1 - part) for rate in rates)
        fewest = min(replicas, max(low, whole_engines(demand / fast)))
        most = None if high is None else max(replicas, min(high, whole_engines(demand / slow)))
        return Measurement(bound, part, (fewest, most), (slow, fast))

    return tuple(measured(bound, part) for part, bound in parts if part >= MIN_PART)


def _slow_factors(traffic: Traffic, rows: float, model: Roofline, slow: StepModel) -> dict[str, float]:
    """Return the factor of each class's time at its slow end, in typical steps of so many sequences: of decodes alone,
    and with prompts beside them."""
    assert isinstance(slow, Roofline)
    fresh = traffic.fresh_mean
    usual, slowest = dict[str, float](), dict[str, float]()
    for step in (mixed_step(traffic, rows, 0), mixed_step(traffic, rows, rows * fresh / traffic.output_mean)):
        typical = model.costs(step)  # classes as they are typically
        for costs, sums in ((typical, usual), (slow.costs(step), slowest)):
            for one, of in zip(costs, typical, strict=True):
                sums[of.bound] = sums.get(of.bound, 0.0) + one.seconds
    return {bound: slowest[bound] / seconds for bound, seconds in usual.items() if seconds > 0}
