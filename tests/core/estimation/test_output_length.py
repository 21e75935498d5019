"""Predicted output lengths, and their error by itself and as the scheduler counts it."""

from __future__ import annotations

import pytest

from inflight.core.estimation.output_length import (
    MAX_HISTOGRAMS,
    MIN_SAMPLES,
    Oracle,
    PredictionError,
    PredictionTally,
    Quantiles,
)

from ..builders import request
from ..harness import Harness, Setup


def test_relative_error_share_within_twice_and_bias() -> None:
    tally = PredictionTally()
    assert tally.error() == PredictionError(0, 0.0, 0.0, 0.0)
    for predicted, actual in ((10.0, 10), (20.0, 10), (5.0, 10), (40.0, 10)):
        tally.observe(predicted, actual)
    assert tally.error() == PredictionError(4, pytest.approx((0 + 1 + 0.5 + 3) / 4), 0.75, pytest.approx(75 / 40 - 1))


@pytest.mark.parametrize("oracle", [True, False])
def test_every_sample_counts_that_was_not_aborted_by_what_was_predicted_when_it_came(oracle: bool) -> None:
    harness = Harness(Setup(num_blocks=60, max_rows=4, oracle=oracle))
    harness.add(request("three", output=2, max_tokens=16, n=3), request("gone", [1] * 3, output=20))
    harness.step()
    harness.abort("gone")
    harness.drain()
    # The guess was half of max_tokens; what it became once it was outgrown does not count.
    error = PredictionError(3, 0.0, 1.0, 0.0) if oracle else PredictionError(3, 3.0, 0.0, 3.0)
    assert harness.scheduler.stats().predictions == error


def test_lengths_are_learnt_by_tenant_and_prompt() -> None:
    predictor = Quantiles()
    of_a, of_b = request("a", [0] * 9, tenant="a"), request("b", [0] * 90, tenant="b")
    assert predictor.predict(of_a, 100, 0) == 50
    for number in range(MIN_SAMPLES + 5):
        predictor.observe(of_a, 8 + number % 3)
        predictor.observe(of_b, 60)
    assert predictor.predict(of_a, 100, 0) == pytest.approx(9, rel=0.2)
    assert predictor.predict(of_b, 100, 0) == pytest.approx(60, rel=0.2)
    assert predictor.predict(of_b, 20, 0) == 20, "never more than may come"
    assert predictor.predict(of_a, 100, 40) > 40, "more than is there"


def test_histograms_are_kept_of_those_that_came_last() -> None:
    predictor, steady = Quantiles(), request("steady", [0] * 9, tenant="steady")
    for number in range(3 * MAX_HISTOGRAMS):
        if number % 100 < MIN_SAMPLES + 5:
            predictor.observe(steady, 9)
        predictor.observe(request("once", [0] * 9, tenant=f"{number}"), 60)
    assert len(predictor._histograms) == MAX_HISTOGRAMS
    assert predictor.predict(steady, 100, 0) == pytest.approx(9, rel=0.2), "it came all the time"


def test_only_the_oracle_looks_at_forced_lengths() -> None:
    forced, unforced = request("a", output=7), request("a", output=None)
    assert Quantiles().predict(forced, 100, 0) == Quantiles().predict(unforced, 100, 0)
    assert [Oracle().predict(forced, limit, 0) for limit in (100, 5)] == [7, 5]
    assert Oracle().predict(unforced, 100, 0) == 100
