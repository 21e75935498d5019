"""Two-sided 95 % intervals, for quantiles of one run and for ratios between interleaved runs."""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

Z = 1.959964
STUDENT = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262)  # t, 0.975, by degrees of freedom from 1
MIN_REPEATS = 3  # the interval of two is too wide to be of use


@dataclass(frozen=True, slots=True)
class Estimate:
    """A mean over repeats with its interval; low and high are None for fewer than MIN_REPEATS."""

    mean: float
    low: float | None
    high: float | None
    repeats: int

    @property
    def differs(self) -> bool:
        """For a ratio: whether 1 lies outside of the interval."""
        return self.low is not None and self.high is not None and not self.low <= 1.0 <= self.high


def quantile_interval(ordered: Sequence[float], share: float) -> tuple[float, float] | None:
    """Return the interval of a quantile from order statistics (binomial, normal approximation; Conover, Practical
    Nonparametric Statistics), for independent samples of any distribution.

    None where there are too few samples: the p99 of 100 requests is their maximum, and has no upper end.
    """
    ranks = _ranks(len(ordered), share)
    return None if ranks is None else (ordered[ranks[0]], ordered[ranks[1]])


def min_samples(share: float) -> int:
    """Return the number of samples from which on a quantile's interval has both ends: 563 for p99."""
    return next(number for number in itertools.count(1) if _ranks(number, share) is not None)


def _ranks(number: int, share: float) -> tuple[int, int] | None:
    spread = Z * math.sqrt(number * share * (1 - share))
    low, high = math.floor(number * share - spread), math.ceil(number * share + spread)
    return None if low < 1 or high > number - 1 else (low - 1, high)


def estimate(values: Sequence[float]) -> Estimate:
    """Return the mean of independent repeats with Student's interval."""
    mean = statistics.fmean(values)
    if len(values) < MIN_REPEATS:
        return Estimate(mean, None, None, len(values))
    half = _student(len(values) - 1) * statistics.stdev(values) / math.sqrt(len(values))
    return Estimate(mean, mean - half, mean + half, len(values))


def paired_ratio(above: Sequence[float], below: Sequence[float]) -> Estimate | None:
    """Return the geometric mean of the ratios within each repeat, which a machine's drift between repeats affects
    little, with Student's interval over their logarithms; None where a value is not above zero."""
    if not above or min(*above, *below) <= 0:
        return None
    logs = estimate([math.log(a / b) for a, b in zip(above, below, strict=True)])
    low = None if logs.low is None else math.exp(min(logs.low, 700.0))
    high = None if logs.high is None else math.exp(min(logs.high, 700.0))
    return Estimate(math.exp(logs.mean), low, high, logs.repeats)


def _student(freedom: int) -> float:
    """Return the 0.975 quantile of Student's t; beyond the table by Cornish and Fisher's expansion about the normal's,
    off by less than 0.01 % there."""
    if freedom <= len(STUDENT):
        return STUDENT[freedom - 1]
    first = (Z**3 + Z) / 4
    second = (5 * Z**5 + 16 * Z**3 + 3 * Z) / 96
    third = (3 * Z**7 + 19 * Z**5 + 17 * Z**3 - 15 * Z) / 384
    return Z + first / freedom + second / freedom**2 + third / freedom**3
