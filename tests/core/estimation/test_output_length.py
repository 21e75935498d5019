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
from inflight.core.policies.fcfs import Fcfs
from inflight.core.scheduling.config import SchedulerConfig
from inflight.core.scheduling.scheduler import Scheduler
from inflight.core.sequence import SequenceView
from inflight.core.strategies.chunked import Chunked
from inflight.core.types.length_distribution import EndedOutput, PredictedLength, point, uniform
from inflight.core.types.plan import BatchPlan, Capacity, Sampled, StepResult

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
    # The guess was the mean of 1 to max_tokens; what it became once it was outgrown does not count.
    error = PredictionError(3, 0.0, 1.0, 0.0) if oracle else PredictionError(3, 3.25, 0.0, 3.25)
    assert harness.scheduler.stats().predictions == error


def test_lengths_are_learnt_by_tenant_and_prompt() -> None:
    predictor = Quantiles()
    of_a, of_b = request("a", [0] * 9, tenant="a"), request("b", [0] * 90, tenant="b")
    assert predictor.lengths(of_a, 100, 0) == uniform(1, 100), "without any knowledge"
    for number in range(MIN_SAMPLES + 5):
        predictor.observe(of_a, 8 + number % 3)
        predictor.observe(of_b, 60)
    assert predictor.lengths(of_a, 100, 0).mean() == pytest.approx(9, rel=0.2)
    assert predictor.lengths(of_b, 100, 0).mean() == pytest.approx(60, rel=0.2)
    assert predictor.lengths(of_b, 20, 0) == point(20), "never more than may come"
    assert predictor.lengths(of_a, 100, 40).starts[0] == 41, "more than is there"


def test_histograms_are_kept_of_those_that_came_last() -> None:
    predictor, steady = Quantiles(), request("steady", [0] * 9, tenant="steady")
    for number in range(3 * MAX_HISTOGRAMS):
        if number % 100 < MIN_SAMPLES + 5:
            predictor.observe(steady, 9)
        predictor.observe(request("once", [0] * 9, tenant=f"{number}"), 60)
    assert len(predictor._histograms) == MAX_HISTOGRAMS
    assert predictor.lengths(steady, 100, 0).mean() == pytest.approx(9, rel=0.2), "it came all the time"


def test_only_the_oracle_looks_at_forced_lengths() -> None:
    forced, unforced = request("a", output=7), request("a", output=None)
    assert Quantiles().lengths(forced, 100, 0) == Quantiles().lengths(unforced, 100, 0)
    assert [Oracle().lengths(forced, limit, 0) for limit in (100, 5)] == [point(7), point(5)]
    assert Oracle().lengths(unforced, 100, 0) == point(100)


def test_outputs_that_max_tokens_cut_count_as_longer() -> None:
    predictor, limited, asked = Quantiles(), request("a", max_tokens=50), request("b", max_tokens=200)
    for _ in range(MIN_SAMPLES + 5):
        predictor.observe(limited, 50)
    assert predictor.lengths(limited, 50, 0) == point(50)
    assert predictor.lengths(asked, 200, 0).starts[0] > 50, "of any length"


def test_a_probes_predictions_take_the_place_of_those_made_on_arrival() -> None:
    """And they follow the output: what it has is never predicted to come."""
    config = SchedulerConfig(Capacity(60, 4, 4, 100, 100), Chunked(9), Fcfs(), token_budget=9, reports_ends=True)
    scheduler = Scheduler(config)
    scheduler.add(request("a", output=None, max_tokens=64), 0.0)
    plan = scheduler.plan(0.0)
    assert isinstance(plan, BatchPlan)
    sampled = (Sampled(plan.chunks[0].sequence_id, (5,)),)
    probabilities = (0.0, 0.0, 0.5, 0.0, 0.5)
    result = (PredictedLength(plan.chunks[0].sequence_id, 0, probabilities), PredictedLength(77, 0, probabilities))
    scheduler.commit(plan, StepResult(plan.step, sampled, 0.1, lengths=result), 0.1)
    (sequence,) = scheduler._running.sequences
    assert sequence.lengths.starts == (1, 2, 3, 4, 6) and sequence.predicted == pytest.approx((3 + 6.5) / 2)
    assert SequenceView(sequence).output_lengths.exceeds(1) == 1.0
    scheduler.abort("a", 0.2)
    scheduler.add(request("b", output=None, max_tokens=64), 0.2)
    plan = scheduler.plan(0.2)
    assert isinstance(plan, BatchPlan) and plan.ended == (EndedOutput(0, 1, None),)


def test_a_predictor_answers_with_a_distribution_whose_mean_sums_to_the_lengths() -> None:
    """The median of skewed lengths sums to too little; that is why sums take the mean."""
    predictor, asked = Quantiles(), request("a", [0] * 9)
    actual = [4] * 60 + [60] * 40
    for length in actual:
        predictor.observe(asked, length)
    lengths = predictor.lengths(asked, 100, 0)
    assert lengths.mean() == pytest.approx(sum(actual) / len(actual), rel=0.1)
    assert lengths.quantile(0.5) < 6
    assert lengths.exceeds(20) == pytest.approx(0.4, abs=0.03)
    longer = predictor.lengths(asked, 100, 20)
    assert longer == lengths.given(20) and longer.exceeds(20) == 1.0 and longer.mean() > 50
    outlived = predictor.lengths(asked, 100, 80)
    assert (outlived.starts[0], outlived.end) == (81, 100)


@pytest.mark.parametrize("cut", [1, 2, 3, 5, 16, 100])
def test_outputs_that_were_all_cut_alike_are_learnt_from(cut: int) -> None:
    """Clients that always ask for one token leave nothing in the bins of lengths that are known."""
    predictor, asked = Quantiles(), request("cut", max_tokens=cut)
    for _ in range(40):
        predictor.observe(asked, cut)
    for most in (1, cut, cut + 1, 4 * cut):
        found = predictor.lengths(request("next", max_tokens=most), most, 0)
        assert 1 <= found.mean() <= most and found.end <= most
        assert found.mean() > cut or most <= cut
