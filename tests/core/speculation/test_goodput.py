"""How likely drafts are right, how many each sequence has against all ways to allot them, and what they cost."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from itertools import islice, product

import hypothesis.strategies as st
import pytest
from hypothesis import given

from inflight.core.estimation.latency import LatencyModel
from inflight.core.speculation.goodput import (
    FIRST_PASSES,
    MAX_ACCEPT_RATE,
    MIN_GAIN,
    MIN_YIELD,
    OUTLIER,
    PRIOR_ACCEPT_RATE,
    REFUSAL_DECAY,
    Acceptance,
    ExtendedStep,
    Offer,
    SequenceAcceptance,
    StepCost,
    choose,
)
from inflight.core.types.features import Features


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


def test_drafts_go_to_the_sequence_with_the_likeliest_next_one() -> None:
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
    assert choose(offers, 1, linear(0.01, 0.0), 8, asking=(0.0, 0.001)) == {1: 1}
    assert choose(offers, 1, linear(0.01, 0.0), 8, asking=(0.001, 0.001)) == {}


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


def test_of_linear_steps_a_draft_costs_the_slope() -> None:
    cost = learnt(lambda tokens: 0.01 + 0.0005 * tokens, 4, 6, 8, 16, rows=4)
    step = cost.extended(decodes(4))
    assert step.seconds == pytest.approx(0.012, rel=0.05)
    assert step.extra(4) == pytest.approx(0.002, rel=0.25)


def test_tokens_that_cost_nothing_beside_the_weights_are_found_to_be_free() -> None:
    """Up to 8 tokens a step reads weights, and beyond it computes."""

    def seconds(tokens: int) -> float:
        return 0.01 + 0.001 * max(0, tokens - 8)

    step = learnt(seconds, 2, 4, 6, 8, 10, 12, 16, rows=2).extended(decodes(2))
    assert step.extra(6) < 0.001
    assert step.extra(12) - step.extra(6) == pytest.approx(0.006, rel=0.3)


def test_a_kernel_that_takes_over_at_the_second_token_is_a_threshold() -> None:
    cost = learnt(lambda tokens: 0.01 if tokens == 1 else 0.016 + 0.0001 * tokens, 1, 2, 3, 4, 6, 8)
    step = cost.extended(decodes(1))
    assert step.extra(1) == pytest.approx(0.006, rel=0.2)
    assert step.extra(5) - step.extra(1) < 0.002


def test_where_no_step_had_so_many_tokens_the_model_of_step_time_counts() -> None:
    step = learnt(lambda tokens: 0.01 + 0.0005 * tokens, 4, rows=4).extended(decodes(4))
    assert 0.0 <= step.extra(4) < 0.004


def test_beside_a_prompt_nothing_is_corrected() -> None:
    latency = LatencyModel()
    cost = StepCost(latency)
    for _ in range(20):
        for held in (decodes(1), decodes(8), prompt(64)):
            latency.observe(held, 0.01 + 0.0001 * held.tokens)
            cost.observe(held, 0.05 if held.tokens == 8 else 0.01)
    assert cost.extended(prompt(64)).seconds == pytest.approx(latency.seconds(prompt(64)))
    assert cost.extended(decodes(8)).seconds > 2 * latency.seconds(decodes(8))


def test_passes_of_the_executor_are_timed_as_they_come() -> None:
    cost = StepCost(LatencyModel())
    for _ in range(50):
        cost.observe_passes(4, 0.008)
    assert cost.pass_seconds == pytest.approx(0.002)
    for _ in range(50):
        cost.observe_passes(2, 0.002)
    assert cost.pass_seconds == pytest.approx(0.001, rel=0.05)


def test_what_a_device_compiles_is_not_what_a_pass_takes() -> None:
    """Neither at the beginning nor where something is compiled later: drafting would be given up for what is over."""
    cost = StepCost(LatencyModel())
    assert [cost.observe_passes(2, seconds) for seconds in (3.0, 0.4, 0.002, 0.003)] == [0.0] * FIRST_PASSES
    assert cost.pass_seconds == 0.001
    assert cost.observe_passes(2, 5.0) == pytest.approx(2 * OUTLIER * 0.001)
    assert cost.pass_seconds == pytest.approx(0.001 * (1 + 0.1 * (OUTLIER - 1)))
    assert cost.observe_passes(1, 0.001) == 0.001


def test_one_by_one_they_are_those_of_each_number_and_never_fall() -> None:
    step = learnt(lambda tokens: 0.01 if tokens % 4 else 0.008, *range(2, 20), rows=2).extended(decodes(2))
    each = list(islice(step.extras(), 12))
    assert each == [max(step.extra(count) for count in range(1, most + 1)) for most in range(1, 13)]


def test_scheduling_that_drafts_expose_is_what_rounds_behind_them_take_more() -> None:
    cost = StepCost(LatencyModel())
    cost.observe_gap(0.003, behind_drafts=True)
    assert (cost.gap, cost.exposed) == (0.0, 0.0)  # no other is known to compare it with
    for _ in range(200):
        cost.observe_gap(0.001, behind_drafts=False)
        cost.observe_gap(0.004, behind_drafts=True)
    step = cost.extended(decodes(4))
    assert (step.gap, step.exposed) == pytest.approx((0.001, 0.003), rel=0.01)


def taught(believed: tuple[float, ...], truth: float, steps: int = 400) -> tuple[Acceptance, random.Random]:
    """Sequences of five steps each, whose drafts are right as often as `truth` says."""
    acceptance, chance, of = Acceptance(), random.Random(1), SequenceAcceptance()
    for step in range(steps):
        of = SequenceAcceptance() if step % 5 == 0 else of
        right = 0
        while right < len(believed) and chance.random() < truth:
            right += 1
        acceptance.learn(of, believed, len(believed), right)
    return acceptance, chance


def test_before_there_is_evidence_a_drafter_is_believed() -> None:
    fresh = SequenceAcceptance()
    assert Acceptance().chances(fresh, (0.9, 0.5, 0.1), 3) == pytest.approx((0.9, 0.5, 0.1), abs=0.05)
    assert Acceptance().chances(fresh, (), 3) == (PRIOR_ACCEPT_RATE, PRIOR_ACCEPT_RATE, PRIOR_ACCEPT_RATE)


@pytest.mark.parametrize("truth", [0.1, 0.5, 0.9])
def test_what_a_drafter_says_comes_to_mean_what_came_of_it(truth: float) -> None:
    """Here it is as sure of everything; and of what it never said, nothing was learnt."""
    acceptance, _ = taught((0.7,) * 4, truth)
    surely, unseen = acceptance.chances(SequenceAcceptance(), (0.7, 0.2), 2)
    assert surely == pytest.approx(truth, abs=0.08)
    assert unseen == pytest.approx(0.2, abs=0.05)


def test_only_drafts_whose_forerunners_were_right_are_judged() -> None:
    """The second place is right whenever it is reached, though that is seldom."""
    acceptance, chance, of = Acceptance(), random.Random(2), SequenceAcceptance()
    for _ in range(600):
        acceptance.learn(SequenceAcceptance(), (), 2, 2 if chance.random() < 0.25 else 0)
    first, second = acceptance.chances(of, (), 2)
    assert first == pytest.approx(0.25, abs=0.08) and second > 0.9


def test_a_sequence_is_like_the_others_until_its_own_drafts_are_judged() -> None:
    acceptance, _ = taught((0.7,) * 4, 0.7)
    usual = acceptance.chances(SequenceAcceptance(), (0.7,), 1)[0]
    poor, fine = SequenceAcceptance(), SequenceAcceptance()
    seen = []
    for _ in range(6):
        acceptance.learn(poor, (0.7,) * 4, 4, 0)
        acceptance.learn(fine, (0.7,) * 4, 4, 4)
        seen.append((acceptance.chances(poor, (0.7,), 1)[0], acceptance.chances(fine, (0.7,), 1)[0]))
    assert all(low < usual < high <= MAX_ACCEPT_RATE for low, high in seen)
    assert [low for low, _ in seen] == sorted((low for low, _ in seen), reverse=True)
    assert seen[-1][0] < usual / 2


@pytest.mark.parametrize("drafts", [1, 5, 12])
def test_a_sequence_whose_drafts_are_right_as_often_as_the_others_has_their_chances(drafts: int) -> None:
    """However many are drafted: a step judges all that were right, and one that was not."""
    chance, of, factors = random.Random(drafts), SequenceAcceptance(), []
    for _ in range(4000):
        right = 0
        while right < drafts and chance.random() < 0.8:
            right += 1
        of.add(right, 0.8 * min(drafts, right + 1))
        factors.append(of.factor)
    assert sum(factors) / len(factors) == pytest.approx(1.0, abs=0.04)


def test_refusals_fade_a_sequences_evidence() -> None:
    acceptance, of = taught((0.7,), 0.7)[0], SequenceAcceptance()
    for _ in range(8):
        acceptance.learn(of, (0.7,), 1, 0)
    bad = of.factor
    for _ in range(150):
        of.fade(REFUSAL_DECAY)
    assert bad < 0.5 and of.factor == pytest.approx(1.0, abs=0.05)
