"""Distributions of output lengths, compared with all their lengths listed one by one."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inflight.core.types.length_distribution import (
    REMAINING_STARTS,
    LengthDistribution,
    bin_of,
    bin_start,
    of_remaining,
    of_weights,
    point,
    uniform,
)


def listed(lengths: LengthDistribution) -> dict[int, float]:
    """Return the probability of each length."""
    found = {}
    for index, (start, probability) in enumerate(zip(lengths.starts, lengths.probabilities, strict=True)):
        last = lengths.starts[index + 1] - 1 if index + 1 < len(lengths.starts) else lengths.end
        for length in range(start, last + 1):
            found[length] = probability / (last - start + 1)
    return found


def test_bins_hold_the_lengths_that_are_in_them() -> None:
    for length in range(1, 3000):
        assert bin_start(bin_of(length)) <= length < bin_start(bin_of(length) + 1)


@given(
    st.lists(st.sampled_from([0.0, 0.0, 0.5, 1.0, 7.0]), min_size=1, max_size=40).filter(any),
    st.integers(1, 300),
    st.integers(0, 320),
    st.floats(0, 1),
)
def test_answers_are_those_of_the_listed_lengths(weights: list[float], bound: int, so_far: int, p: float) -> None:
    weights = [one if bin_start(index) < bin_start(index + 1) else 0.0 for index, one in enumerate(weights)]
    if not any(weights):
        return
    lengths = of_weights(weights, bound)
    each = listed(lengths)
    assert math.isclose(sum(each.values()), 1.0) and max(each) == lengths.end <= bound
    assert lengths.mean() == pytest.approx(sum(length * share for length, share in each.items()))
    assert lengths.exceeds(so_far) == pytest.approx(sum(each.get(n, 0.0) for n in each if n > so_far), abs=1e-9)
    reached = lengths.quantile(p)
    assert sum(share for length, share in each.items() if length <= reached) >= p - 1e-6
    assert sum(share for length, share in each.items() if length < reached) <= p + 1e-6
    rest, beyond = lengths.given(so_far), {n: share for n, share in each.items() if n > so_far and share > 0}
    if beyond:
        total = sum(beyond.values())
        assert {n: share for n, share in listed(rest).items() if share > 0} == pytest.approx(
            {n: share / total for n, share in beyond.items()}
        )
    else:
        assert rest == point(so_far + 1), "it has outlived what was foreseen"


def test_weights_beyond_the_bound_lie_at_the_bound() -> None:
    assert of_weights([0.0] * bin_of(600) + [1.0], 500) == point(500)
    half = of_weights([1.0] + [0.0] * (bin_of(600) - 1) + [1.0], 500)
    assert (half.mean(), half.quantile(0.5), half.quantile(0.51), half.exceeds(499)) == (250.5, 1, 500, 0.5)


def test_a_point_and_a_uniform_length() -> None:
    assert (point(7).mean(), point(7).quantile(0.99), point(7).exceeds(6), point(7).exceeds(7)) == (7.0, 7, 1.0, 0.0)
    even = uniform(1, 10)
    assert (even.mean(), even.quantile(0.9), even.exceeds(8), even.given(5).mean()) == (5.5, 9, 0.2, 8.0)


@given(st.lists(st.floats(0, 1), min_size=1, max_size=34).filter(any), st.integers(1, 300), st.integers(0, 300))
def test_remaining_tokens_become_lengths_and_what_passes_the_bound_lies_there(
    probabilities: list[float], bound: int, so_far: int
) -> None:
    bound += so_far
    lengths, total = of_remaining(probabilities, bound, so_far), sum(probabilities)
    wanted: dict[int, float] = {}
    for index, share in enumerate(probabilities):
        first = REMAINING_STARTS[index]
        last = REMAINING_STARTS[index + 1] - 1 if index + 1 < len(REMAINING_STARTS) else first
        for more in (first, last):
            length = min(bound, so_far + more)
            wanted[length] = wanted.get(length, 0.0) + share / total / 2
    assert max(lengths.starts) <= lengths.end <= bound and min(lengths.starts) == so_far + 1
    assert sum(lengths.probabilities) == pytest.approx(1.0)
    mean = sum(length * share for length, share in wanted.items())
    assert 0.95 * mean <= lengths.mean() <= 1.1 * mean  # lengths within a bin are alike
