"""Compare two runs of the same requests: figures of both, and the interval of their ratio.

Requests that come together share a queue, so that single ones are no independent samples. The time is cut into
stretches, and stretches are drawn with replacement (a bootstrap of blocks: Künsch 1989), the same ones of both runs.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from inflight.metrics.observation import LatencyMetric, Observation

STRETCHES = 24
MIN_STRETCHES = 8  # with requests, for an interval
RESAMPLES = 1000
_INTERVAL_SHARES = (0.025, 0.975)

Values = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Measure:
    """A figure of a run: the maximum of a latency over a share of the requests, or requests/s.

    Attributes:
        metric: None: requests/s, of those that completed, or that met their targets, too (`attained`).
        of_completed: Whether the latency is that of completed requests alone; else others count as infinite.
    """

    metric: LatencyMetric | None
    share: float = 0.5
    gap_share: float = 0.99
    of_completed: bool = False
    attained: bool = True


GOODPUT, ANSWERED = Measure(None), Measure(None, attained=False)


class PairedRuns:
    """Stretches of time with their requests, drawn again and again."""

    def __init__(self, times: Sequence[float], begin: float, end: float, seed: int = 0):
        """Cut the measured time, from `begin` to `end`, into stretches. times: of the requests' arrivals."""
        length = max(end - begin, 1e-9) / STRETCHES
        stretch = np.clip((np.array(times) - begin) // length, 0, STRETCHES - 1).astype(int)
        _, self._stretch = np.unique(stretch, return_inverse=True)
        self.stretches = int(self._stretch.max()) + 1 if len(times) else 0
        self.seconds = end - begin
        drawn = np.random.default_rng(seed).integers(0, max(1, self.stretches), (RESAMPLES, max(1, self.stretches)))
        self._counts = np.stack([np.bincount(row, minlength=self.stretches) for row in drawn])

    @property
    def has_interval(self) -> bool:
        return self.stretches >= MIN_STRETCHES

    def value(self, run: Sequence[Observation], measure: Measure) -> float:
        """Return a figure of a run; nan where no request has anything to measure."""
        values = figures_of(run, measure)
        if measure.metric is None:
            return float(values.sum()) / self.seconds
        known = np.sort(values[~np.isnan(values)])
        return float(known[_rank(len(known), measure.share)]) if len(known) else math.nan

    def ratio(self, one: Sequence[Observation], other: Sequence[Observation], measure: Measure) -> tuple[float, float]:
        """Return the 95 % interval of the first run's figure over the second's.

        It is from nan to nan where there is none, and infinite where the second is 0.
        """
        if not self.has_interval:
            return math.nan, math.nan
        above, below = (self._drawn(figures_of(run, measure), measure) for run in (one, other))
        with np.errstate(divide="ignore", invalid="ignore"):
            ratios = above / below
        ratios[above == below] = 1.0  # of two that are 0, or infinite, too
        known = np.sort(ratios[~np.isnan(ratios)])
        if len(known) < RESAMPLES // 2:
            return math.nan, math.nan
        low, high = (known[_rank(len(known), share)] for share in _INTERVAL_SHARES)
        return float(low), float(high)

    def _drawn(self, values: Values, measure: Measure) -> Values:
        """Return the figure of each draw."""
        if measure.metric is None:
            return np.asarray(self._counts @ np.bincount(self._stretch, values, self.stretches), dtype=float)
        known = ~np.isnan(values)
        order = np.argsort(values[known])
        ordered, stretch = values[known][order], self._stretch[known][order]
        found = np.full(RESAMPLES, math.nan)
        for number, counts in enumerate(self._counts):
            sums = np.cumsum(counts[stretch])
            if len(sums) and sums[-1]:
                found[number] = ordered[np.searchsorted(sums, max(1, math.ceil(measure.share * sums[-1])))]
        return found


def figures_of(run: Sequence[Observation], measure: Measure) -> Values:
    """float64[requests]: 1 or 0 for requests/s, else seconds; nan where a request has nothing to measure."""
    metric, share = measure.metric, measure.gap_share
    if metric is None:
        return np.array([float(one.attained if measure.attained else one.outcome == "completed") for one in run])
    found = [None if measure.of_completed and one.outcome != "completed" else one.figure(metric, share) for one in run]
    return np.array([math.nan if value is None else value for value in found])


def _rank(number: int, share: float) -> int:
    return max(0, math.ceil(share * number - 1e-9) - 1)
