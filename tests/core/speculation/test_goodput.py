"""How many drafts each sequence has against all ways to allot them, and what they cost."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import product

import hypothesis.strategies as st
import pytest
from hypothesis import given

from inflight.core.estimation.latency import LatencyModel
from inflight.core.speculation.goodput import (
    FIRST_PASSES,
    MIN_GAIN,
    MIN_YIELD,
    OUTLIER,
    ExtendedStep,
    StepCost,
    choose,
)
from inflight.core.types.features import Features

Offers = dict[int, tuple[float, ...]]


def linear(seconds: float, each: float, tokens: int = 4, *more: float) -> ExtendedStep:
    return ExtendedStep(seconds, each, tokens, (), *more)


def gain(chances: tuple[float, ...], count: int) -> float:
    return sum(math.prod(chances[:place]) for place in range(1, count + 1))


def best_rate(offers: Offers, tokens: int, step: ExtendedStep, most: int) -> float:
    """Tokens a second of the best step of all."""
    ways = product(*(range(len(chances) + 1) for chances in offers.values()))
    return max(
        (tokens + sum(gain(chances, count) for chances, count in zip(offers.values(), counts, strict=True)))
        / step.seconds(sum(counts))
        for counts in ways
        if sum(counts) <= most
    )


@given(
    believed=st.lists(st.lists(st.floats(0.2, 0.99), min_size=1, max_size=3), min_size=1, max_size=4),
    each=st.floats(1e-6, 0.01),
    tokens=st.integers(4, 8),
    most=st.integers(0, 12),
)
def test_the_step_with_the_most_tokens_a_second_is_chosen(
    believed: list[list[float]], each: float, tokens: int, most: int
) -> None:
    offers = {number: tuple(chances) for number, chances in enumerate(believed)}
    step = linear(0.01, each, tokens)
    choice = choose(offers, step, most)
    counts = [choice.get(number, 0) for number in offers]
    expected = sum(gain(chances, count) for chances, count in zip(offers.values(), counts, strict=True))
    rate = (tokens + expected) / step.seconds(sum(counts))
    assert sum(counts) <= most
    # What yields less than MIN_YIELD is not looked at.
    assert rate >= best_rate(offers, tokens, step, most) * (1 - 12 * MIN_YIELD / tokens)


def test_drafts_go_to_the_sequence_with_the_likeliest_next_one() -> None:
    offers = {1: (0.9, 0.9, 0.9), 2: (0.5, 0.5, 0.5), 3: (0.05,)}
    assert choose(offers, linear(0.01, 0.0003, 3), 4) == {1: 3, 2: 1}


def test_what_costs_more_than_it_yields_is_not_drafted() -> None:
    """At 100 tokens a second a token that takes 8 ms must yield more than 0.8."""
    step = linear(0.04, 0.008)
    assert choose({1: (0.75,)}, step, 8) == {}
    assert choose({1: (0.95,)}, step, 8) == {1: 1}


def test_a_threshold_is_passed_where_what_is_behind_it_pays() -> None:
    """The second token of a step costs 8 ms, and those behind it nothing."""
    step = ExtendedStep(0.01, 0.0, 1, [1.0, 1.0, 1.8], 0.0)
    assert choose({1: (0.7,)}, step, 8) == {}
    assert choose({1: (0.7,) * 6}, step, 8) == {1: 6}


def test_a_step_stays_within_the_time_that_it_may_take() -> None:
    offers, step = {1: (0.95,) * 8}, linear(0.01, 0.001, 1)
    assert choose(offers, step, 8) == {1: 8}
    assert choose(offers, step, 8, max_seconds=0.0135) == {1: 3}
    assert choose(offers, step, 8, max_seconds=0.009) == {}


def test_a_pass_is_paid_once_for_all_that_are_drafted_for() -> None:
    step = linear(0.01, 0.0, 8, 0.0035)
    one, eight = (dict.fromkeys(range(count), (0.6, 0.3)) for count in (1, 8))
    assert choose(one, step, 16) == {}
    assert choose(eight, step, 16) == dict.fromkeys(range(8), 1)


def test_a_gain_that_is_within_errors_is_left() -> None:
    for chance, counts in ((4.8 * (1 + MIN_GAIN) - 4.001, {}), (4.8 * (1 + MIN_GAIN) - 3.999, {1: 1})):
        assert choose({1: (chance,)}, linear(0.04, 0.008), 8) == counts


def test_drafts_pay_for_what_they_expose() -> None:
    """Scheduling and questions to the drafter: 2 of 10 ms that else run beside the step before it."""
    offers = {1: (0.18,)}
    assert choose(offers, linear(0.01, 0.0, 1, 0.0, 0.002, 0.0), 8) == {1: 1}
    assert choose(offers, linear(0.01, 0.0, 1, 0.0, 0.0, 0.002), 8) == {}


Seconds = Callable[[int], float]


def decodes(tokens: int, drafts: int = 0) -> Features:
    """Return features of so many tokens, including drafts, behind a hundred others each."""
    rows = tokens - drafts
    return Features(tokens, rows, tokens, decode_context=100 * rows, prefill_context=100.0 * drafts)


def prompt(tokens: int) -> Features:
    return Features(tokens, 1, 1, 0, tokens * tokens / 2)


def learnt(seconds: Seconds, *seen: int, rows: int = 1) -> StepCost:
    """From steps of so many tokens, of which those behind `rows` are drafts, and prompts."""
    latency = LatencyModel()
    cost = StepCost(latency)
    for _ in range(40):
        for held in (*(decodes(tokens, tokens - rows) for tokens in seen), prompt(256)):
            latency.observe(held, seconds(held.tokens))
            cost.observe(held, seconds(held.tokens))
    return cost


def extra(step: ExtendedStep, drafts: int) -> float:
    return step.seconds(drafts) - step.seconds()


def test_of_linear_steps_a_draft_costs_the_slope() -> None:
    cost = learnt(lambda tokens: 0.01 + 0.0005 * tokens, 4, 6, 8, 16, rows=4)
    step = cost.extended(decodes(4))
    assert step.seconds() == pytest.approx(0.012, rel=0.05)
    assert extra(step, 4) == pytest.approx(0.002, rel=0.25)


def test_tokens_that_cost_nothing_beside_the_weights_are_found_to_be_free() -> None:
    """Up to 8 tokens a step reads weights, and beyond it computes."""

    def seconds(tokens: int) -> float:
        return 0.01 + 0.001 * max(0, tokens - 8)

    step = learnt(seconds, 2, 4, 6, 8, 10, 12, 16, rows=2).extended(decodes(2))
    assert extra(step, 6) < 0.001
    assert extra(step, 12) - extra(step, 6) == pytest.approx(0.006, rel=0.3)


def test_a_kernel_that_takes_over_at_the_second_token_is_a_threshold() -> None:
    cost = learnt(lambda tokens: 0.01 if tokens == 1 else 0.016 + 0.0001 * tokens, 1, 2, 3, 4, 6, 8)
    step = cost.extended(decodes(1))
    assert extra(step, 1) == pytest.approx(0.006, rel=0.2)
    assert extra(step, 5) - extra(step, 1) < 0.002


def test_where_no_step_had_so_many_tokens_the_model_of_step_time_counts() -> None:
    step = learnt(lambda tokens: 0.01 + 0.0005 * tokens, 4, rows=4).extended(decodes(4))
    assert 0.0 <= extra(step, 4) < 0.004


def test_beside_a_prompt_nothing_is_corrected() -> None:
    latency = LatencyModel()
    cost = StepCost(latency)
    for _ in range(20):
        for held in (decodes(1), decodes(8), prompt(64)):
            latency.observe(held, 0.01 + 0.0001 * held.tokens)
            cost.observe(held, 0.05 if held.tokens == 8 else 0.01)
    assert cost.extended(prompt(64)).seconds() == pytest.approx(latency.seconds(prompt(64)))
    assert cost.extended(decodes(8)).seconds() > 2 * latency.seconds(decodes(8))


def pass_seconds(cost: StepCost) -> float:
    return cost.extended(decodes(1)).pass_seconds


def test_passes_of_the_executor_are_timed_as_they_come() -> None:
    cost = StepCost(LatencyModel())
    for _ in range(50):
        cost.observe_passes(4, 0.008)
    assert pass_seconds(cost) == pytest.approx(0.002)
    for _ in range(50):
        cost.observe_passes(2, 0.002)
    assert pass_seconds(cost) == pytest.approx(0.001, rel=0.05)


def test_what_a_device_compiles_is_not_what_a_pass_takes() -> None:
    """Neither at the beginning nor where something is compiled later: drafting would be given up for what is over."""
    cost = StepCost(LatencyModel())
    for count, seconds in enumerate((3.0, 0.4, 0.002, 0.003)):
        assert count < FIRST_PASSES and pass_seconds(cost) == 0.0
        cost.observe_passes(2, seconds)
    assert pass_seconds(cost) == 0.001
    cost.observe_passes(2, 5.0)
    assert pass_seconds(cost) == pytest.approx(0.001 * (1 + 0.1 * (OUTLIER - 1)))


def test_a_further_draft_never_makes_a_step_shorter() -> None:
    """Steps of a multiple of four tokens take less, so that the fourth token seems to bring time."""
    step = ExtendedStep(0.01, 0.0, 3, [1.0, 1.0, 1.0, 1.0, 0.5])
    assert choose({1: (0.01,)}, step, 8) == {} and choose({1: (0.1,)}, step, 8) == {1: 1}
    assert choose({1: (0.01, 0.9)}, step, 8, max_seconds=0.009) == {}


def test_scheduling_that_drafts_expose_is_what_rounds_behind_them_take_more() -> None:
    cost = StepCost(LatencyModel())
    cost.drafted_gap.add(0.003)
    step = cost.extended(decodes(4))
    assert (step.gap, step.exposed) == (0.0, 0.0)  # no other is known to compare it with
    for _ in range(200):
        cost.gap.add(0.001)
        cost.drafted_gap.add(0.004)
    step = cost.extended(decodes(4))
    assert (step.gap, step.exposed) == pytest.approx((0.001, 0.003), rel=0.01)
