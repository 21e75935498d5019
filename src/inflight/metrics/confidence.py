"""How sure a figure is: intervals for quantiles of one run, and for ratios between interleaved runs.

Intervals are two-sided, 95 %.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

Z = 1.959964
STUDENT = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262)  # t, 0.975, by degrees of freedom from 1
FEWEST_REPEATS = 3  # two differ by chance so often by nothing, or by all, that their interval is as wide as the world


@dataclass(frozen=True, slots=True)
class Estimate:
    """A mean over repeats with its interval; low and high are None for fewer than FEWEST_REPEATS."""

    mean: float
    low: float | None
    high: float | None
    repeats: int

    @property
    def differs(self) -> bool:
        """For a ratio: whether 1 lies outside of the interval."""
        return self.low is not None and self.high is not None and not self.low <= 1.0 <= self.high


def quantile_interval(ordered: Sequence[float], share: float) -> tuple[float, float] | None:
    """Interval for a quantile from order statistics (binomial, normal approximation; Conover, Practical Nonparametric
    Statistics): makes no assumption on the distribution, but takes the samples for independent.

    None where the samples do not reach that far: the p99 of 100 requests is their maximum, and has no upper end.
    """
    places = _places(len(ordered), share)
    return None if places is None else (ordered[places[0]], ordered[places[1]])


def fewest_samples(share: float) -> int:
    """That a quantile must rest on for its interval to have both ends: 563 for p99."""
    return next(number for number in itertools.count(1) if _places(number, share) is not None)


def _places(number: int, share: float) -> tuple[int, int] | None:
    spread = Z * math.sqrt(number * share * (1 - share))
    low, high = math.floor(number * share - spread), math.ceil(number * share + spread)
    return None if low < 1 or high > number - 1 else (low - 1, high)


def estimate(values: Sequence[float]) -> Estimate:
    """Mean of independent repeats with Student's interval."""
    mean = statistics.fmean(values)
    if len(values) < FEWEST_REPEATS:
        return Estimate(mean, None, None, len(values))
    half = _student(len(values) - 1) * statistics.stdev(values) / math.sqrt(len(values))
    return Estimate(mean, mean - half, mean + half, len(values))


def paired_ratio(above: Sequence[float], below: Sequence[float]) -> Estimate | None:
    """Geometric mean of the ratios within each repeat, so that a machine whose speed drifts between repeats blurs it
    little; the interval is Student's over their logarithms. None where a value is not above zero."""
    if not above or min(*above, *below) <= 0:
        return None
    logs = estimate([math.log(a / b) for a, b in zip(above, below, strict=True)])
    low = None if logs.low is None else math.exp(min(logs.low, 700.0))
    high = None if logs.high is None else math.exp(min(logs.high, 700.0))
    return Estimate(math.exp(logs.mean), low, high, logs.repeats)


def _student(freedom: int) -> float:
    """The 0.975 quantile of Student's t. Beyond the table by Cornish and Fisher's expansion about the normal's, off by
    less than 0.01 % there."""
    if freedom <= len(STUDENT):
        return STUDENT[freedom - 1]
    first = (Z**3 + Z) / 4
    second = (5 * Z**5 + 16 * Z**3 + 3 * Z) / 96
    third = (3 * Z**7 + 19 * Z**5 + 17 * Z**3 - 15 * Z) / 384
    return Z + first / freedom + second / freedom**2 + third / freedom**3
