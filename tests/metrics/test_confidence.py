"""Intervals: they cover the truth as often as they say, and say nothing where they cannot."""

from __future__ import annotations

import random
from statistics import stdev

import pytest

from inflight.metrics.confidence import estimate, min_samples, paired_ratio, quantile_interval
from inflight.metrics.definitions import percentiles, quantile


@pytest.mark.parametrize("share", [0.5, 0.95])
def test_a_quantiles_interval_holds_the_truth_about_19_times_of_20(share: float) -> None:
    rng = random.Random(1)
    truth = quantile(sorted(rng.expovariate(1.0) for _ in range(200_000)), share)
    held = 0
    for _ in range(1000):
        interval = quantile_interval(sorted(rng.expovariate(1.0) for _ in range(400)), share)
        assert interval is not None
        held += interval[0] <= truth <= interval[1]
    assert 920 <= held <= 990


def test_too_few_samples_have_no_interval() -> None:
    assert quantile_interval(sorted(random.Random(0).random() for _ in range(100)), 0.99) is None
    assert quantile_interval([], 0.5) is None
    assert percentiles([1.0, 2.0, 3.0]).p50_interval is None
    assert percentiles(float(n) for n in range(2000)).p99_interval is not None


@pytest.mark.parametrize("values", [[3.0], [2.0, 4.0]])
def test_one_repeat_or_two_say_nothing_of_their_interval(values: list[float]) -> None:
    few = estimate(values)
    assert (few.mean, few.low, few.high, few.repeats) == (3.0, None, None, len(values))
    assert not few.differs


@pytest.mark.parametrize(
    ("freedom", "value"),
    [(2, 4.30265), (9, 2.26216), (10, 2.22814), (30, 2.04227), (60, 2.00030), (1000, 1.96234)],
)
def test_students_quantile_is_the_tables_at_any_number_of_repeats(freedom: int, value: float) -> None:
    """Values of published tables."""
    values = [float(number % 2) for number in range(freedom + 1)]
    found = estimate(values)
    assert found.high is not None
    half = value * stdev(values) / (freedom + 1) ** 0.5
    assert found.high - found.mean == pytest.approx(half, rel=1.5e-4)


def test_ratios_within_repeats_are_blind_to_a_drifting_machine() -> None:
    speeds = [1.0, 0.5, 0.25, 0.125]
    ratio = paired_ratio([2.0 * speed for speed in speeds], speeds)
    assert ratio is not None and ratio.mean == pytest.approx(2.0)
    assert ratio.differs
    same = paired_ratio([1.0, 1.1, 0.9], [1.1, 0.9, 1.0])
    assert same is not None and not same.differs
    assert paired_ratio([1.0, 0.0], [1.0, 1.0]) is None, "a ratio of nothing has no logarithm"
    assert paired_ratio([], []) is None


def test_a_quantile_needs_samples_beyond_it() -> None:
    for share, fewest in ((0.5, 8), (0.95, 110), (0.99, 563)):
        assert min_samples(share) == fewest
        assert quantile_interval(range(fewest), share) is not None
        assert quantile_interval(range(fewest - 1), share) is None
