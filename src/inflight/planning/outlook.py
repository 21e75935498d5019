"""What would change the answer: more traffic, longer answers, burstier arrivals, another batching strategy.

Knows trials at the planned number of replicas under a changed demand, and searches under a changed strategy.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

from inflight.core.strategies.registry import STRATEGIES
from inflight.planning.demand import Demand, faster, longer, longer_prompts
from inflight.planning.engine_config import TOGETHER
from inflight.planning.proposal import step_limit
from inflight.planning.search import TRICKLE, Capacity, find_capacity
from inflight.planning.simulation import Trial
from inflight.planning.sizing import ROUGH, ROUGHLY, Candidate, Progress, TrialRunner, candidate_for, measure

CHANGES: tuple[tuple[str, Callable[[Demand], Demand]], ...] = (
    ("20 % more requests", lambda demand: faster(demand, 1.2)),
    ("answers half as long again", lambda demand: longer(demand, 1.5)),
    ("prompts half as long again", lambda demand: longer_prompts(demand, 1.5)),
    ("arrivals clumped twice as much (CV doubled)", lambda demand: demand.burstier(4.0)),
)


@dataclass(frozen=True, slots=True)
class Change:
    """trial: under the changed demand, with the planned replicas. replicas: that it would take; None: more than
    `beyond`, which was the most that was tried."""

    name: str
    trial: Trial
    replicas: int | None
    beyond: int = 0


@dataclass(frozen=True, slots=True)
class Strategies:
    """What one strategy would need. candidate.rate 0: it keeps the SLOs at no rate, and capacity.broken is the
    trial that shows it. reason: why it was not tried."""

    strategy: str
    candidate: Candidate | None
    reason: str = ""


def outlook(runner: TrialRunner, best: Candidate, replicas: int, progress: Progress) -> list[Change]:
    found = []
    for name, change in CHANGES:
        progress(f"What if: {name}")
        changed = change(runner.question.demand)
        trial = runner.run(best, changed.rate / replicas, seed=2, demand=changed)
        if trial.met:
            found.append(Change(name, trial, replicas))
        elif changed.rate > runner.question.demand.rate:  # alike, only more
            found.append(Change(name, trial, _more_than(replicas, changed.rate / best.rate)))
        else:
            found.append(_searched(runner, best, changed, replicas, Change(name, trial, None)))
    return found


def _more_than(replicas: int, wanted: float) -> int:
    """Of the planned ones it was seen that they are too few, whatever another trial says."""
    return max(replicas + 1, math.ceil(wanted * 0.999))


def _searched(runner: TrialRunner, best: Candidate, changed: Demand, replicas: int, change: Change) -> Change:
    """With the replicas that it would take."""

    def trial(rate: float) -> Trial:
        return runner.run(best, rate, seed=2, demand=changed, reads=ROUGHLY)

    found = find_capacity(trial, 0.8 * best.rate, ROUGH, 4, trickle=False)
    if found.held is not None:
        return replace(change, replicas=_more_than(replicas, changed.rate / found.held.rate))
    assert found.broken is not None
    return replace(change, beyond=math.ceil(changed.rate / found.broken.rate))


def compare(runner: TrialRunner, best: Candidate, progress: Progress) -> list[Strategies]:
    """What each strategy would need on the chosen machine. Of the planned one that is known."""
    found = []
    for name in STRATEGIES:
        if name == best.config.strategy:
            found.append(Strategies(name, best))
            continue
        if name == "adaptive" and step_limit(runner.question.slos) is None:
            found.append(Strategies(name, None, "it needs a promise on ITL to hold"))
            continue
        progress(f"Strategy {name}")
        overrides = runner.question.overrides
        overrides = replace(
            overrides,
            strategy=name,
            max_num_batched_tokens=None if name in TOGETHER else overrides.max_num_batched_tokens,
        )
        candidate = candidate_for(runner.question, runner.traffic, best.machine, overrides)
        slowest = runner.run(candidate, TRICKLE * candidate.guess) if name in TOGETHER else None
        if slowest is not None and not slowest.met:  # what fails when requests hardly meet is promised to nobody
            found.append(Strategies(name, replace(candidate, capacity=Capacity(None, slowest, 1))))
        else:
            found.append(Strategies(name, measure(runner, candidate, rough=True)))
    return found
