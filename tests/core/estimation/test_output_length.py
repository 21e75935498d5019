"""The error of predicted output lengths, by itself and as the scheduler counts it."""

from __future__ import annotations

import pytest

from inflight.core.estimation.output_length import PredictionError, PredictionTally

from ..builders import request
from ..harness import Harness, Setup


def test_relative_error_share_within_twice_and_bias() -> None:
    tally = PredictionTally()
    assert tally.error() == PredictionError(0, 0.0, 0.0, 0.0)
    for predicted, actual in ((10.0, 10), (20.0, 10), (5.0, 10), (40.0, 10)):
        tally.observe(predicted, actual)
    assert tally.error() == PredictionError(4, pytest.approx((0 + 1 + 0.5 + 3) / 4), 0.75, pytest.approx(75 / 40 - 1))


def test_the_oracle_errs_never_and_a_guess_does() -> None:
    for oracle in (True, False):
        harness = Harness(Setup(num_blocks=60, max_rows=4, oracle=oracle))
        harness.add(*(request(f"{n}", [n % 8] * 3, output=2, max_tokens=16) for n in range(4)))
        harness.drain()
        error = harness.scheduler.snapshot().predictions
        # The guess was half of max_tokens, when it came; what it became later, once it was outgrown, does not count.
        assert error == (PredictionError(4, 0.0, 1.0, 0.0) if oracle else PredictionError(4, 3.0, 0.0, 3.0))


def test_every_sample_counts_and_aborted_ones_do_not() -> None:
    harness = Harness(Setup(num_blocks=60, max_rows=4, oracle=True))
    harness.add(request("three", output=3, n=3), request("gone", [1] * 3, output=20))
    harness.step()
    harness.abort("gone")
    harness.drain()
    assert harness.scheduler.snapshot().predictions.samples == 3
