"""Trials of the planned load, which a plan and all that is called cheaper than it have to keep the SLOs in."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import partial

from inflight.planning.parallel import run_ahead
from inflight.planning.simulation import Trial
from inflight.planning.sizing import HARDER_BY, THOROUGHLY, Candidate, Question, TrialRunner

LOWER = 5  # rates at which a candidate is tried


@dataclass(frozen=True, slots=True)
class PlannedLoad:
    """Trials of the planned load, with another seed than that of the search, which may be harder. reads: times the
    usual requests of a trial. decides: whether a trial runs on until it decides the SLOs. workers: processes at once;
    the result does not depend on them."""

    runner: TrialRunner
    reads: float
    decides: bool
    workers: int

    def asking(self, question: Question) -> PlannedLoad:
        return replace(self, runner=self.runner.asking(question))

    def run(self, one: Candidate, replicas: int) -> Trial:
        """Run a trial of the demand on so many replicas."""
        rate = self.runner.question.demand.rate / replicas
        topology = self.runner.topology(min(one.pooled, replicas))
        trial = self.runner.run(one, rate, seed=2, reads=self.reads, topology=topology)
        if self.decides and trial.undecided and self.runner.question.sizes.decisive:  # it runs on
            trial = self.runner.run(one, rate, seed=2, topology=topology, decides=True)
        return trial

    def run_ahead(self, one: Candidate, replicas: Iterable[int]) -> None:
        """Run a trial of the demand on each number of replicas, on several cores: the cache keeps them."""
        if self.runner.has_cache:
            run_ahead([partial(self.run, one, number) for number in replicas], self.workers)


def confirmed(runner: TrialRunner, gpus: int, found: Candidate) -> Candidate:
    """Return a candidate at a rate with which it keeps the SLOs under the planned load, as long as it looks better than
    the plan: its rate is of short trials with another seed, which are often easier.

    Args:
        runner: Runs trials.
        gpus: Of the plan.
        found: The candidate, at the rate of its own search.

    Returns:
        The candidate; with the rate 0 where it keeps the SLOs at none that was tried.
    """
    for step in range(LOWER):
        if not _is_better(found, gpus, runner.question):
            return found
        question, replicas = runner.question, _replicas(found, runner.question)
        if question.gpus is not None:
            question = replace(question, demand=replace(question.demand, rate=replicas * found.rate))
        if PlannedLoad(runner.asking(question), THOROUGHLY, decides=True, workers=1).run(found, replicas).met:
            return found
        found = replace(found, rate=found.rate / HARDER_BY ** (2**step))
    return replace(found, rate=0.0) if _is_better(found, gpus, runner.question) else found


def _replicas(found: Candidate, question: Question) -> int:
    return found.replicas(question.demand) if question.gpus is None else question.gpus // found.machine.gpus


def _is_better(found: Candidate, gpus: int, question: Question) -> bool:
    """Return whether a candidate takes fewer GPUs than the plan, or on as many serves more."""
    if question.gpus is None:
        return found.gpus(question.demand) < gpus
    return _replicas(found, question) * found.rate > question.demand.rate
