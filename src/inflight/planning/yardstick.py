"""Short trials of other traffic, read beside one of the planned load with the same requests."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import accumulate
from operator import mul

from inflight.metrics.slo import Slo
from inflight.planning.candidate import Candidate
from inflight.planning.demand import Demand
from inflight.planning.load import asks_for_sessions, balanced_load
from inflight.planning.question import Question
from inflight.planning.simulation import Trial
from inflight.planning.trial_runner import PLANNED_SEED, TrialRunner
from inflight.simulate.steps import StepModel


@dataclass(frozen=True, slots=True)
class Yardstick:
    """How a short trial is read: beside one of the planned load with the same requests, which are harder or easier than
    the many that the answer rests on. values, percentiles: the long trial's, in parts of the short one's."""

    values: Mapping[Slo, float]
    percentiles: Mapping[str, tuple[float, ...]]

    @classmethod
    def of(cls, long: Trial, short: Trial) -> Yardstick:
        """Compare both trials of the planned load, of which the long one meets the SLOs. Where the short one says too
        little, others are read as they are."""
        if not short.summary.requests or short.is_exhausted:
            return cls({}, {})
        values = {slo: _ratio(long.values[slo], value) for slo, value in short.values.items() if slo in long.values}
        percentiles = {
            name: tuple(map(_ratio, long.percentiles[name], found)) for name, found in short.percentiles.items()
        }
        return cls(values, percentiles)

    def read(self, trial: Trial) -> Trial:
        """Return a trial as it would be with as many requests as the long one."""
        if trial.is_exhausted:
            return trial
        values = {slo: value * self.values.get(slo, 1.0) for slo, value in trial.values.items()}
        percentiles = {
            name: tuple(accumulate(map(mul, found, self.percentiles[name]), max))  # none is below a lower one
            if name in self.percentiles
            else found
            for name, found in trial.percentiles.items()
        }
        return replace(trial, values=values, percentiles=percentiles)


def _ratio(long: float, short: float) -> float:
    """Return the ratio of two latencies; 1 where there is none."""
    return long / short if 0 < long < math.inf and 0 < short < math.inf else 1.0


def beside(
    runner: TrialRunner,
    candidate: Candidate,
    rate: float,
    *,
    model: StepModel | None = None,
    demand: Demand | None = None,
    reads: float = 1.0,
) -> Trial:
    """Run a trial with the requests that the planned load begins with, a short one unless `reads` says how many times
    as many. Where so many conversations are asked for, as many are open, and the rate follows."""
    question = runner.question if demand is None else replace(runner.question, demand=demand)
    if not asks_for_sessions(question):
        return runner.run(candidate, rate, seed=PLANNED_SEED, model=model, demand=demand, reads=reads)
    if model is not None:
        candidate = replace(candidate, machine=replace(candidate.machine, model=model))
    replicas, traffic = max(1, round(question.demand.rate / rate)), runner.traffic_of(question.demand)

    def run(asked: Question) -> Trial:
        return runner.asking(asked, traffic).run(
            candidate, asked.demand.rate / replicas, seed=PLANNED_SEED, reads=reads
        )

    return balanced_load(question, candidate, replicas, traffic, run)[1]
