"""The ends of a plan's interval: the highest rate with steps as slow, and as fast, as they may be."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from inflight.planning.candidate import Candidate
from inflight.planning.fitted_limit import fitted_limit
from inflight.planning.long_trials import EXHAUSTED
from inflight.planning.search import find_capacity
from inflight.planning.simulation import Trial
from inflight.planning.sizing import ROUGH, expected_share, kept_rate
from inflight.planning.steady import steady_state
from inflight.planning.trial_runner import PLANNED_SEED, ROUGHLY, TrialRunner
from inflight.simulate.steps import StepModel

END_SEARCH_TRIALS = 6  # trials at most of a search for an end that is far from where it was expected, or without SLOs
END_TRIALS = 4  # at most, near an end
END_READS = 2.0  # times the usual requests of these
NEAR_END = 1.15  # factor between the rate of one of these and the end that follows from it: beyond, one more follows


def rate_under(runner: TrialRunner, candidate: Candidate, model: StepModel, planned: Trial) -> float:
    """Return the requests/s of each replica that meet the SLOs with another step model; 0 where even requests that
    hardly meet miss the SLOs.

    Where all steps take f times as long, a trial at 1/f of the rate has f times the latencies. So the planned load's
    trial is one at this end, too, and what few trials find here rests on its many requests.

    Args:
        runner: Runs trials.
        candidate: With its rate.
        model: Of the steps.
        planned: The trial of the planned load.
    """
    usual = candidate.machine.model
    rate = candidate.rate * expected_rate(runner, candidate, model) / expected_rate(runner, candidate, usual)
    trial = partial(runner.run, candidate, model=model)
    if not runner.question.slos:
        return kept_rate(runner, find_capacity(trial, rate, ROUGH, END_SEARCH_TRIALS))
    faster = served(runner, candidate, model) / served(runner, candidate, usual)
    most, reads = faster * candidate.ceiling, END_READS if runner.question.takes_long_trials else ROUGHLY
    missed = candidate.capacity.missed
    if missed is not None and missed.is_exhausted:  # short trials hardly show that a queue grows
        most = min(most, candidate.rate * faster)
    values = {slo: value / faster for slo, value in planned.values.items()}
    trials, far = [replace(planned, rate=planned.rate * faster, values=values)], 0
    for number in range(END_TRIALS):
        found = trial(rate, seed=PLANNED_SEED + number, reads=reads)
        trials.append(found)
        limit = min(fitted_limit(trials).limit, most)
        far += found.is_exhausted or max(limit / rate, rate / limit) > NEAR_END
        if number > far:
            return limit
        rate = max(rate / 2, min(2 * rate, limit / EXHAUSTED if found.is_exhausted else limit))
    if far > 1 and not any(one.met for one in trials[1:]):  # if there is a rate at all
        return kept_rate(runner, find_capacity(trial, rate, ROUGH, END_SEARCH_TRIALS, known=trials[-1]))
    return limit


def expected_rate(runner: TrialRunner, candidate: Candidate, model: StepModel) -> float:
    """Return the requests/s of each replica that the closed form expects with another step model."""
    machine = replace(candidate.machine, model=model)
    share = expected_share(machine, candidate.config, runner.traffic, runner.question.slos)
    return share * served(runner, candidate, model)


def served(runner: TrialRunner, candidate: Candidate, model: StepModel) -> float:
    """Return the requests/s that each replica serves at most by the closed form, with another step model."""
    rows = candidate.config.max_num_seqs
    return steady_state(model, runner.traffic, rows, candidate.step_tokens).requests_per_s
