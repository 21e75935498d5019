"""Find the planned rate by long trials: where latency hardly rises with the rate, a few percent of it are many
replicas."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from inflight.planning.candidate import Candidate, whole_engines
from inflight.planning.fitted_limit import FittedLimit, fitted_limit
from inflight.planning.parallel import run_ahead
from inflight.planning.planned_load import PlannedLoad, PlannedLoadTrials
from inflight.planning.search import Capacity
from inflight.planning.simulation import Trial
from inflight.planning.sizing import in_order, with_all_rows, with_fewer_rows
from inflight.planning.trial_runner import PLANNED_SEED, TrialRunner

LONG = 4.0  # times the usual requests of a trial
ENOUGH = 3  # of these near the limit
ROUNDS = 4  # at most, of two
RATE_FACTORS = (1.04, 1.02)  # between the limit, as known before, and their rates: in the first round, and later
EXHAUSTED = 1.1  # factor to a lower rate where in no trial so far all requests were served in time, squared each time
A_LITTLE = 1.02  # times the limit, where an SLO is missed
NEAR, FARTHEST = 1.12, 1.3  # factor from the limit, up to which trials count; and at most, between two rounds


def by_long_trials(runner: TrialRunner, one: Candidate, replicas: int, workers: int) -> PlannedLoad | None:
    """Find the highest rate that meets the SLOs in long trials, and the replicas that serve the demand with it; None
    where no long trials are taken (`Question.takes_long_trials`), or short ones found no rate. Where the queue grows in
    all of them, far below the rate of the short ones, the trial shows it.

    Args:
        runner: Runs trials.
        one: The chosen machine with its settings, and its rate by short trials.
        replicas: That short trials found to be enough.
        workers: Processes at once; the result does not depend on them.
    """
    question = runner.question
    if not (question.takes_long_trials and one.rate):
        return None
    one = with_all_rows(one)  # short trials found fewer enough, at lower rates
    found = _long_trials(runner, one, workers)
    if all(trial.is_exhausted for trial in found.trials):
        trial = runner.run(one, question.demand.rate / replicas, seed=PLANNED_SEED, reads=LONG)
        return PlannedLoad(question, replace(one, missed_at=found.limit), replicas, trial)
    rate = min(found.limit, one.ceiling)
    above = [trial if trial.is_exhausted else found.at(trial.rate) for trial in found.trials if trial.rate > rate]
    beyond = found.at(A_LITTLE * rate)  # as the lines have it
    missed = min((trial for trial in (*above, beyond) if not trial.met), key=lambda trial: trial.rate, default=None)
    capacity = in_order(Capacity(found.at(rate), missed, len(found.trials)))
    peak = max(trial.peak_rows for trial in found.trials if not trial.is_exhausted)  # fewer would change the trials
    config = with_fewer_rows(one, runner.traffic, found.at(rate), question.overrides, at_least=peak)
    chosen = replace(one, config=config, rate=rate, missed_at=None, capacity=capacity)
    if question.gpus is not None:
        served = replace(question, demand=replace(question.demand, rate=rate * replicas))
        return PlannedLoad(served, chosen, replicas, found.at(rate))
    replicas = whole_engines(question.demand.rate / rate)
    if replicas < one.pooled:  # behind a router fewer replicas are harder to balance
        return by_long_trials(runner, replace(one, pooled=replicas, rate=rate, capacity=capacity), replicas, workers)
    return PlannedLoad(question, chosen, replicas, _planned(runner, chosen, question.demand.rate / replicas, found))


def _planned(runner: TrialRunner, chosen: Candidate, rate: float, found: FittedLimit) -> Trial:
    """Return the trial of the planned load, which runs on until it decides the SLOs."""
    trials, topology = PlannedLoadTrials(runner, LONG, decides=True, workers=1), runner.topology(chosen.pooled)
    if rate * NEAR < chosen.rate:
        return trials.run_at(chosen, rate, topology)
    return trials.decided(found.at(rate), chosen, rate, topology)


def _long_trials(runner: TrialRunner, one: Candidate, workers: int) -> FittedLimit:
    """Run long trials, each with requests of its own, below and above the limit that those before it say, until enough
    of them are near it."""
    trials: list[Trial] = []
    says_more = one.capacity.has_both and one.missed_at is None
    rate = max(one.rate, one.capacity.limit) if says_more else one.rate
    for number in range(ROUNDS):
        factor = RATE_FACTORS[min(number, len(RATE_FACTORS) - 1)]
        jobs = [
            partial(runner.run, one, each, seed=PLANNED_SEED + 2 * number + side, reads=LONG)
            for side, each in enumerate((rate / factor, rate * factor))
        ]
        if runner.stores(one.config):
            run_ahead(jobs, workers)
        trials += [job() for job in jobs]
        if all(trial.is_exhausted for trial in trials):
            rate /= EXHAUSTED ** (2**number)
            continue
        limit = min(fitted_limit(_near(trials, rate)).limit, one.ceiling)
        rate = max(rate / FARTHEST, min(rate * FARTHEST, limit))
        near = _near(trials, rate)
        if len(near) >= ENOUGH and not all(trial.is_exhausted for trial in near):
            break
    return fitted_limit(_near(trials, rate) or trials)


def _near(trials: Sequence[Trial], rate: float) -> list[Trial]:
    """Return the trials near a rate, and the lowest where the queue grew and the highest where it did not."""
    grew = min((one.rate for one in trials if one.is_exhausted), default=math.inf)
    highest = max((one.rate for one in trials if not one.is_exhausted), default=math.inf)
    return [one for one in trials if max(one.rate / rate, rate / one.rate) <= NEAR or one.rate in (grew, highest)]
