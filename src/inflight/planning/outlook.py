"""What would change the answer: more traffic, longer answers, burstier arrivals, another batching strategy.

Knows trials at the planned number of replicas under a changed demand, and searches under a changed strategy.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from inflight.planning.demand import Demand
from inflight.planning.search import find_capacity
from inflight.planning.simulation import Trial
from inflight.planning.sizing import Bench, Candidate, Progress, candidate_for, measure

STRATEGIES = ("static", "dynamic", "continuous", "chunked", "adaptive")
ROUGH = 0.25  # tolerance: only about how many more is asked
CHANGES = (("20 % more requests", "faster", 1.2), ("answers half as long again", "longer", 1.5),
           ("arrivals clumped twice as much (CV doubled)", "burstier", 4.0))  # fmt: skip


@dataclass(frozen=True, slots=True)
class Change:
    """trial: under the changed demand, with the planned replicas. replicas: that it would take; None: more
    than a few times as many."""

    name: str
    trial: Trial
    replicas: int | None


@dataclass(frozen=True, slots=True)
class Strategies:
    """What one strategy would need. candidate.rate 0: it keeps the promises at no rate, and capacity.broken is the
    trial that shows it. reason: why it was not tried."""

    strategy: str
    candidate: Candidate | None
    reason: str = ""


def outlook(bench: Bench, best: Candidate, replicas: int, progress: Progress) -> list[Change]:
    found = []
    for name, verb, factor in CHANGES:
        progress(f"What if: {name}")
        changed: Demand = getattr(bench.question.demand, verb)(factor)
        trial = bench.run(best, changed.rate / replicas, seed=2, demand=changed)
        found.append(Change(name, trial, _needed(bench, best, replicas, changed, trial)))
    return found


def _needed(bench: Bench, best: Candidate, replicas: int, changed: Demand, trial: Trial) -> int | None:
    if trial.met:
        return replicas
    if changed.rate > bench.question.demand.rate:  # alike, only more
        return math.ceil(changed.rate / best.rate * 0.999)
    found = find_capacity(
        lambda rate: bench.run(best, rate, seed=2, demand=changed), 0.8 * best.rate, ROUGH, 2, trickle=False
    )
    return None if found.held is None else math.ceil(changed.rate / found.held.rate * 0.999)


def compare(bench: Bench, best: Candidate, progress: Progress) -> list[Strategies]:
    """What each strategy would need on the chosen machine, by the rate that one replica keeps (without what a router
    adds, which is alike for all)."""
    found = []
    for name in STRATEGIES:
        if name == "adaptive" and not any(slo.metric == "itl" for slo in bench.question.slos):
            found.append(Strategies(name, None, "it needs a promise on ITL to hold"))
            continue
        progress(f"Strategy {name}")
        wishes = replace(bench.question.wishes, strategy=name)
        candidate = candidate_for(bench.question, bench.traffic, best.machine, wishes)
        found.append(Strategies(name, measure(bench, candidate, most=5)))
    return found
