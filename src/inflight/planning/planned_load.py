"""Trials of the planned load, which a plan and all that is called cheaper than it have to keep the SLOs in."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple

from inflight.planning.candidate import Candidate
from inflight.planning.engine_config import EngineConfig
from inflight.planning.fitted_limit import fitted_limit
from inflight.planning.load import balanced_load, conversations_of
from inflight.planning.parallel import run_ahead
from inflight.planning.question import THOROUGHLY, Question
from inflight.planning.simulation import Topology, Trial
from inflight.planning.sizing import HARDER_BY, with_fewer_rows
from inflight.planning.trial_runner import PLANNED_SEED, TrialRunner

MAX_MORE_REPLICAS = 4  # times that some are added for a harder seed
MAX_LOWER_RATES = 10  # times that so many GPUs get fewer requests: a low lane may fall behind far below a short trial
MAX_CONFIRMING_TRIALS = 5  # rates, or numbers of replicas, with which a candidate is tried
MIN_STEP_DOWN = 1.01  # factor between two of these rates


@dataclass(frozen=True, slots=True)
class PlannedLoadTrials:
    """Trials of the planned load, with another seed than that of the search, which may be harder. reads: times the
    usual requests of a trial. decides: whether a trial runs on until it decides the SLOs. workers: processes at once;
    the result does not depend on them."""

    runner: TrialRunner
    reads: float
    decides: bool
    workers: int

    def asking(self, question: Question) -> PlannedLoadTrials:
        return replace(self, runner=self.runner.asking(question))

    def run(self, candidate: Candidate, replicas: int) -> Trial:
        """Run a trial of the demand on so many replicas."""
        topology = self.runner.topology(min(candidate.pooled, replicas))
        return self.run_at(candidate, self.runner.question.demand.rate / replicas, topology)

    def run_at(
        self, candidate: Candidate, rate: float, topology: Topology, config: EngineConfig | None = None
    ) -> Trial:
        """Run a trial at so many requests/s of each engine. config: in place of the candidate's."""
        trial = self.runner.run(candidate, rate, seed=PLANNED_SEED, reads=self.reads, config=config, topology=topology)
        return self.decided(trial, candidate, rate, topology, config) if self.decides else trial

    def decided(
        self, trial: Trial, candidate: Candidate, rate: float, topology: Topology, config: EngineConfig | None = None
    ) -> Trial:
        """Return a trial that was run so; where it does not decide the SLOs, one that runs on until it does."""
        if not (trial.undecided and self.runner.question.sizes.decisive):
            return trial
        return self.runner.run(candidate, rate, seed=PLANNED_SEED, config=config, topology=topology, decides=True)

    def run_ahead(self, candidate: Candidate, replicas: Iterable[int]) -> None:
        """Run a trial of the demand on each number of replicas, on several cores: the cache keeps them."""
        if self.runner.stores(candidate.config):
            run_ahead([partial(self.run, candidate, number) for number in replicas], self.workers)


class PlannedLoad(NamedTuple):
    """The planned load as trials found it. question: at its rate, which may follow from them. trial: on so many
    replicas of the chosen machine."""

    question: Question
    chosen: Candidate
    replicas: int
    trial: Trial

    @property
    def share(self) -> float:
        """Return the requests/s of each replica."""
        return self.question.demand.rate / self.replicas


def planned_replicas(trials: PlannedLoadTrials, best: Candidate) -> PlannedLoad:
    """Return the replicas that meet the SLOs, with as many request slots as the search needed, if those are enough for
    the bursts. Where there are so many GPUs, they get fewer requests instead."""
    question, met = trials.runner.question, best.capacity.met
    fixed = question.engines(best.machine)
    replicas = best.replicas(question.demand) if fixed is None else fixed
    candidate = best
    if met is not None:
        candidate = replace(best, config=with_fewer_rows(best, trials.runner.traffic, met, question.overrides))
    question, trial = _run_balanced(trials, question, candidate, replicas, ahead=True)
    # Where not all of the fewer rows were taken, more of them change nothing.
    if not trial.met and candidate.config != best.config and trial.peak_rows >= candidate.config.max_num_seqs:
        fewer, candidate = candidate, best
        question, trial = _run_balanced(trials, question, candidate, replicas)
        candidate = best if trial.met else fewer  # the load is too high for either
    attempts = MAX_MORE_REPLICAS if fixed is None else MAX_LOWER_RATES
    for attempt in range(attempts if question.slos else 0):
        if trial.met:
            break
        missed_at = question.demand.rate / replicas if fixed is None else None
        if fixed is None:
            replicas = _more(replicas)
        else:
            question = replace(question, demand=replace(question.demand, rate=question.demand.rate / HARDER_BY))
        question, trial = _run_balanced(trials, question, candidate, replicas, ahead=attempt % 2 == 1)
        served = {"rate": trial.rate, "missed_at": missed_at} if trial.met else {"missed_at": trial.rate}
        candidate = replace(candidate, **served)
    return PlannedLoad(question, replace(candidate, pooled=min(candidate.pooled, replicas)), replicas, trial)


def _run_balanced(
    trials: PlannedLoadTrials, question: Question, candidate: Candidate, replicas: int, *, ahead: bool = False
) -> tuple[Question, Trial]:
    """Run a trial of the load on so many replicas, and return it behind the question at the rate that follows from it.
    ahead: whether that of the next harder load runs, too, on another core."""
    if ahead and question.slos and question.gpus is None and conversations_of(question) is None:
        trials.run_ahead(candidate, (replicas, _more(replicas)))

    def run(asked: Question) -> Trial:
        return trials.asking(asked).run(candidate, replicas)

    return balanced_load(question, candidate, replicas, trials.runner.traffic, run)


def _more(replicas: int) -> int:
    """Return the replicas to try where so many are too few."""
    return max(replicas + 1, round(HARDER_BY * replicas))


@dataclass(frozen=True, slots=True)
class Confirmed:
    """rate: requests/s of each engine, with which it keeps the SLOs; 0: at none that was tried. met: the trial that
    shows it; None: none did. missed: at the lowest rate that missed them."""

    rate: float
    met: Trial | None
    missed: Trial | None


def confirmed_rate(
    rate: float,
    trial: Callable[[float], Trial],
    *,
    worth: float = 0.0,
    whole: Callable[[float, float], float] = lambda below, rate: below,
) -> Confirmed:
    """Find a rate with which the SLOs are kept under the planned load. That of a search is of short trials with another
    seed, which are often easier.

    Args:
        rate: Of the search.
        trial: Runs a trial of the planned load at a rate.
        worth: A rate of which, and of lower ones, none is of interest.
        whole: The rate of a whole number of engines, from one that is lower than another, and that one.
    """
    tried: list[Trial] = []
    while rate > worth and len(tried) < MAX_CONFIRMING_TRIALS:
        found = trial(rate)
        if found.met:
            return Confirmed(rate, found, tried[-1] if tried else None)
        tried.append(replace(found, rate=rate))
        rate = whole(_lower(tried), rate)
    return _by_all(tried) if len(tried) == MAX_CONFIRMING_TRIALS else Confirmed(0.0, None, tried[-1] if tried else None)


def _lower(tried: Sequence[Trial]) -> float:
    """Return the next rate after trials that all missed the SLOs: where a line through them says, but no further than a
    step that is longer each time."""
    rate = tried[-1].rate
    furthest = rate / math.pow(HARDER_BY, 2 ** (len(tried) - 1))
    return furthest if tried[-1].is_exhausted else max(furthest, min(rate / MIN_STEP_DOWN, fitted_limit(tried).limit))


def _by_all(tried: Sequence[Trial]) -> Confirmed:
    """Return the rate that a line through all trials says, each of which missed the SLOs by a little; 0 where it is far
    below them."""
    found = fitted_limit(tried)
    if tried[-1].is_exhausted or found.limit < tried[-1].rate / HARDER_BY:
        return Confirmed(0.0, None, tried[-1])
    return Confirmed(found.limit, found.at(found.limit), tried[-1])


def thorough(runner: TrialRunner) -> PlannedLoadTrials:
    """Return the trials of the planned load that others than the plan are compared by."""
    return PlannedLoadTrials(runner, THOROUGHLY, decides=True, workers=1)


def confirmed(runner: TrialRunner, found: Candidate, *, worth: float = 0.0) -> Candidate:
    """Return a candidate at a rate with which it keeps the SLOs under the planned load, and its trials there.

    Args:
        runner: Runs trials.
        found: The candidate, at the rate of its own search, which may end far below the limit that its trials say.
        worth: Requests/s of each engine of which, and of lower ones, none is of interest.

    Returns:
        The candidate; with the rate 0 where it keeps the SLOs at none that was tried.
    """
    question, capacity = runner.question, found.capacity
    rate = max(found.rate, capacity.limit) if question.slos and capacity.has_both else found.rate

    def at(rate: float) -> Candidate:
        return replace(found, rate=rate)

    def whole(below: float, rate: float) -> float:
        # A little lower rate would often be that of as many replicas.
        replicas = max(_replicas(at(rate), question) + 1, _replicas(at(below), question))
        return below if question.gpus is not None else question.demand.rate / replicas

    kept = confirmed_rate(rate, lambda rate: _trial(runner, at(rate)), worth=worth, whole=whole)
    return replace(at(kept.rate), capacity=replace(capacity, met=kept.met, missed=kept.missed or capacity.missed))


def _trial(runner: TrialRunner, found: Candidate) -> Trial:
    """Run a trial of the planned load, conversations at the rate that they send on this machine."""
    question = runner.question
    replicas = _replicas(found, question)
    if question.gpus is not None:
        question = replace(question, demand=replace(question.demand, rate=replicas * found.rate))
    return _run_balanced(thorough(runner), question, found, replicas)[1]


def _replicas(found: Candidate, question: Question) -> int:
    engines = question.engines(found.machine)
    return found.replicas(question.demand) if engines is None else engines
