"""Find what each SLO costs: the replicas that it takes beyond those of an SLO twice as lax, under the same planned
load."""

from __future__ import annotations

from dataclasses import dataclass, replace

from inflight.metrics.slo import Slo
from inflight.planning.candidate import Candidate, whole_engines
from inflight.planning.planned_load import confirmed
from inflight.planning.search import find_capacity
from inflight.planning.simulation import Trial
from inflight.planning.sizing import TOLERANCE, candidate_for, with_all_rows
from inflight.planning.trial_runner import ROUGHLY, TrialRunner

LAXER = 2.0  # times the limit
SEARCH_FROM = 1.15  # times the planned rate, at which the search begins
_LIMIT_TRIALS = 4


@dataclass(frozen=True, slots=True)
class LimitCost:
    """replicas: that are enough with `relaxed` in place of `slo`. saved: fewer than planned. rate: requests/s that each
    replica serves then."""

    slo: Slo
    relaxed: Slo
    replicas: int
    saved: int
    rate: float


def limit_cost(runner: TrialRunner, best: Candidate, replicas: int, slo: Slo) -> LimitCost:
    """Find the cost of an SLO by trials with a laxer one, under the settings that suit it.

    Args:
        runner: Runs trials of the question.
        best: The chosen machine with its settings.
        replicas: That are planned.
        slo: One of the question's.
    """
    relaxed = replace(slo, limit=LAXER * slo.limit)
    slos = tuple(relaxed if one == slo else one for one in runner.question.slos)
    asking = runner.asking(replace(runner.question, slos=slos))
    candidate = candidate_for(asking.question, runner.traffic, best.machine, runner.question.overrides)
    missed = best.capacity.missed
    if candidate.proposal.config.without_reasons() == best.proposal.config.without_reasons():
        if missed is not None and not missed.met and slo not in (one for one, _ in missed.missed):
            return LimitCost(slo, relaxed, replicas, 0, best.rate)  # another limit is in the way
        candidate = with_all_rows(best)

    def trial(rate: float) -> Trial:
        return asking.run(candidate, rate, reads=ROUGHLY)

    most = candidate.ceiling
    guess = max(SEARCH_FROM * best.rate, min(candidate.guess, most))
    known = _relaxed(best.capacity.met, best.rate, slo, relaxed)
    capacity = find_capacity(trial, guess, TOLERANCE, _LIMIT_TRIALS, trickle=False, ceiling=most, known=known)
    met = capacity.met
    if met is None or met.rate <= best.rate or met.values[relaxed] <= slo.limit:
        return LimitCost(slo, relaxed, replicas, 0, best.rate)  # as much is served within the limit itself
    found = replace(candidate, capacity=capacity, rate=met.rate)
    kept = confirmed(asking, found, worth=best.rate)
    if kept.rate <= best.rate:
        return LimitCost(slo, relaxed, replicas, 0, best.rate)
    needed = min(replicas, whole_engines(runner.question.demand.rate / kept.rate))
    return LimitCost(slo, relaxed, needed, replicas - needed, kept.rate)


def _relaxed(met: Trial | None, rate: float, slo: Slo, relaxed: Slo) -> Trial | None:
    """Return the trial that met an SLO as one that met the laxer one, at a rate; None where there is none."""
    if met is None:
        return None

    def lax(one: Slo) -> Slo:
        return relaxed if one == slo else one

    values = {lax(one): value for one, value in met.values.items()}
    return replace(met, rate=rate, values=values, programs={lax(one): many for one, many in met.programs.items()})
