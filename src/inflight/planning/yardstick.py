"""Short trials of other traffic, read beside one of the planned load with the same requests."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import accumulate
from operator import mul

from inflight.metrics.slo import Slo
from inflight.planning.demand import Demand
from inflight.planning.simulation import Trial
from inflight.planning.sizing import PLANNED_SEED, Candidate, TrialRunner
from inflight.simulate.steps import StepModel


@dataclass(frozen=True, slots=True)
class Yardstick:
    """How a short trial is read: beside one of the planned load with the same requests, which are harder or easier than
    the many that the answer rests on. values, percentiles: the long trial's, in parts of the short one's."""

    values: Mapping[Slo, float]
    percentiles: Mapping[str, tuple[float, ...]]

    @classmethod
    def of(cls, long: Trial, short: Trial) -> Yardstick:
        """Compare both trials of the planned load. Where one of them says too little, others are read as they are."""
        if not (long.met and short.summary.requests) or short.is_exhausted:
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
) -> Trial:
    """Run a short trial with the requests that the planned load begins with."""
    return runner.run(candidate, rate, seed=PLANNED_SEED, model=model, demand=demand)
