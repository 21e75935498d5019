"""How many drafts each has: against all the ways that there are to hand them out."""

from __future__ import annotations

import math
from itertools import product

import hypothesis.strategies as st
from hypothesis import given

from inflight.core.speculation.goodput import MIN_GAIN, MIN_YIELD, Offer, choose
from inflight.core.speculation.step_cost import ExtendedStep


def linear(seconds: float, each: float, tokens: int = 4, *more: float) -> ExtendedStep:
    return ExtendedStep(seconds, each, tokens, [], *more)


def gain(chances: tuple[float, ...], count: int) -> float:
    return sum(math.prod(chances[:place]) for place in range(1, count + 1))


def best_rate(offers: list[Offer], tokens: int, step: ExtendedStep, most: int) -> float:
    """Tokens a second of the best step of all."""
    ways = product(*(range(len(offer.chances) + 1) for offer in offers))
    return max(
        (tokens + sum(gain(offer.chances, count) for offer, count in zip(offers, counts, strict=True)))
        / (step.seconds + step.extra(sum(counts)))
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
    offers = [Offer(number, tuple(chances)) for number, chances in enumerate(believed)]
    step = linear(0.01, each, tokens)
    choice = choose(offers, tokens, step, most)
    counts = [choice.get(offer.number, 0) for offer in offers]
    expected = sum(gain(offer.chances, count) for offer, count in zip(offers, counts, strict=True))
    rate = (tokens + expected) / (step.seconds + step.extra(sum(counts)))
    assert sum(counts) <= most
    # What yields less than MIN_YIELD is not looked at.
    assert rate >= best_rate(offers, tokens, step, most) * (1 - 12 * MIN_YIELD / tokens)


def test_drafts_go_to_whoever_expects_most_of_the_next_one() -> None:
    offers = [Offer(1, (0.9, 0.9, 0.9)), Offer(2, (0.5, 0.5, 0.5)), Offer(3, (0.05,))]
    assert choose(offers, 3, linear(0.01, 0.0003), 4) == {1: 3, 2: 1}


def test_what_costs_more_than_it_yields_is_not_drafted() -> None:
    """At 100 tokens a second a token that takes 8 ms must yield more than 0.8."""
    step = linear(0.04, 0.008)
    assert choose([Offer(1, (0.75,))], 4, step, 8) == {}
    assert choose([Offer(1, (0.95,))], 4, step, 8) == {1: 1}


def test_a_threshold_is_passed_where_what_is_behind_it_pays() -> None:
    """The second token of a step costs 8 ms, and those behind it nothing."""
    step = ExtendedStep(0.01, 0.0, 1, [1.0, 1.0, 1.8], 0.0)
    assert choose([Offer(1, (0.7,))], 1, step, 8) == {}
    assert choose([Offer(1, (0.7,) * 6)], 1, step, 8) == {1: 6}


def test_a_step_stays_within_the_time_that_it_may_take() -> None:
    offers, step = [Offer(1, (0.95,) * 8)], linear(0.01, 0.001)
    assert choose(offers, 1, step, 8) == {1: 8}
    assert choose(offers, 1, step, 8, max_seconds=0.0135) == {1: 3}
    assert choose(offers, 1, step, 8, max_seconds=0.009) == {}


def test_a_pass_is_paid_once_for_all_that_are_drafted_for() -> None:
    step = linear(0.01, 0.0, 4, 0.0035)
    one, eight = ([Offer(number, (0.6, 0.3)) for number in range(count)] for count in (1, 8))
    assert choose(one, 8, step, 16, makes_passes=True) == {}
    assert choose(eight, 8, step, 16, makes_passes=True) == dict.fromkeys(range(8), 1)


def test_a_gain_that_is_within_errors_is_left() -> None:
    for chance, counts in ((4.8 * (1 + MIN_GAIN) - 4.001, {}), (4.8 * (1 + MIN_GAIN) - 3.999, {1: 1})):
        assert choose([Offer(1, (chance,))], 4, linear(0.04, 0.008), 8) == counts


def test_drafts_pay_for_the_scheduling_that_they_expose_and_for_questions() -> None:
    """2 of 10 ms that else run beside the step before it."""
    offers = [Offer(1, (0.18,))]
    assert choose(offers, 1, linear(0.01, 0.0, 1, 0.0, 0.002, 0.0), 8) == {1: 1}
    assert choose(offers, 1, linear(0.01, 0.0, 1, 0.0, 0.0, 0.002), 8) == {}
    assert choose(offers, 1, linear(0.01, 0.0), 8, ask_seconds=0.001) == {1: 1}
    assert choose(offers, 1, linear(0.01, 0.0), 8, round_seconds=0.001, ask_seconds=0.001) == {}
