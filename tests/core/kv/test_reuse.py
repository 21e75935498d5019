"""How soon sessions come back, and what a block is worth until then."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inflight.core.kv.reuse import NUM_BUCKETS, ReuseModel, best_rates, bucket_start

HAZARDS = st.lists(st.floats(0.0, 1.0), min_size=NUM_BUCKETS, max_size=NUM_BUCKETS)


def rates_by_trial(hazards: list[float]) -> list[float]:
    """Try every time until which a block could be kept."""
    found = []
    for first in range(NUM_BUCKETS):
        survives, chance, time, best = 1.0, 0.0, 0.0, 0.0
        for index in range(first, NUM_BUCKETS):
            time += survives * (bucket_start(index + 1) - bucket_start(index)) * (1 - hazards[index] / 2)
            chance += survives * hazards[index]
            survives *= 1 - hazards[index]
            best = max(best, chance / time)
        found.append(best)
    return found


@given(hazards=HAZARDS.map(lambda many: [min(one, 0.9) for one in many]))
def test_the_best_time_to_keep_a_block_is_found(hazards: list[float]) -> None:
    exact = rates_by_trial(hazards)
    reached = 1.0
    for index, rate in enumerate(best_rates(hazards)):
        if reached > 1e-6:  # hardly any rest comes further, so that differences of sums lose their digits
            assert rate == pytest.approx(exact[index], rel=1e-3, abs=1e-9)
        reached *= 1 - hazards[index]


@given(hazards=HAZARDS)
def test_rates_of_any_chances_are_numbers(hazards: list[float]) -> None:
    assert all(0.0 <= rate < 1e9 for rate in best_rates(hazards))


def rest(model: ReuseModel, traits: tuple[str, ...], buckets: int, returns: bool) -> None:
    for index in range(buckets):
        model.observe(traits, index, came=False)
    model.observe(traits, buckets, came=returns)


def test_sessions_that_return_soon_are_worth_more_than_those_that_do_not() -> None:
    model, rng = ReuseModel(), random.Random(1)
    for _ in range(600):
        rest(model, ("tool",), 8, returns=True)
        rest(model, ("person",), 18, returns=rng.random() < 0.3)
    tool, person = model.rates(("tool",)), model.rates(("person",))
    assert tool[0] > 5 * person[0]
    assert tool[8] > tool[0], "the turn is near"
    assert tool[14] < tool[8], "it has not come"


def test_rests_that_never_end_are_learnt_from_and_what_was_learnt_is_unlearnt() -> None:
    model = ReuseModel()
    for _ in range(300):
        rest(model, (), 6, returns=True)
    before = model.rates(())[0]
    for _ in range(600):
        rest(model, (), 20, returns=False)
    assert model.rates(())[0] < before / 4
    for _ in range(600):
        rest(model, (), 6, returns=True)
    assert model.rates(())[0] > before / 2


def test_a_trait_separates_sessions_that_are_alike_otherwise() -> None:
    model = ReuseModel()
    for _ in range(400):
        rest(model, ("turn 1", "flood"), 20, returns=False)
        rest(model, ("turn 1", "light"), 8, returns=True)
    assert model.rates(("turn 1", "light"))[0] > 4 * model.rates(("turn 1", "flood"))[0]


def test_nothing_learnt_is_least_recently_used_first() -> None:
    rates = ReuseModel().rates(("new",))[1:]
    assert list(rates) == sorted(rates, reverse=True) and rates[-1] > 0
