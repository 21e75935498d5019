"""Times: steps follow the evidence, and stay without it; blocks are loaded or computed, whichever is faster."""

from __future__ import annotations

import random

import pytest

from inflight.core.estimation.latency import (
    RETRY_INTERVAL,
    STALE_STEPS,
    LatencyModel,
    RestoreCost,
    TransferTime,
    prefill_seconds,
)
from inflight.core.types.features import Features


def decodes(rows: int, context: int = 700) -> Features:
    return Features(rows, rows, rows, rows * context, 0.0)


def prompt(tokens: int) -> Features:
    return Features(tokens, 1, 1, 0, tokens * tokens / 2)


def kinked(step: Features) -> float:
    """A machine on which the first twelve tokens cost nothing."""
    return 0.01 + 0.0005 * max(0, step.tokens - 12) + 1e-8 * (step.decode_context + step.prefill_context)


def after_prompts() -> LatencyModel:
    model = LatencyModel()
    for number in range(60):
        for step in (prompt(64 + number % 5 * 32), decodes(40)):
            model.observe(step, kinked(step))
    return model


def test_what_steps_take_is_found_by_tokens_samples_and_context() -> None:
    model, draws = LatencyModel(), random.Random(1)

    def took(step: Features) -> float:
        context = 2e-7 * step.decode_context + 1e-7 * step.prefill_context
        return 0.02 + 3e-4 * step.tokens + 1e-3 * step.samples + context

    for _ in range(400):
        sizes = 1 + draws.randrange(200), 1, draws.randrange(32), draws.randrange(40_000)
        step = Features(*sizes, float(draws.randrange(20_000)))
        model.observe(step, took(step))
    assert model.ready
    for step in (decodes(1, 100), Features(150, 3, 8, 20_000, 9000.0), decodes(32, 940)):
        assert model.seconds(step) == pytest.approx(took(step), rel=0.02)


@pytest.mark.parametrize("steps", [10 * STALE_STEPS, 60 * STALE_STEPS])
def test_while_no_prompts_come_their_price_stays_within_reason(steps: int) -> None:
    """The batch shrinks meanwhile, and what tokens cost with it: that is not laid to the context of old prompts."""
    model = after_prompts()
    before = prefill_seconds(model, 512, 2000)
    for number in range(steps):
        step = decodes(max(4, 40 - 2 * number // STALE_STEPS), 700 + number)
        model.observe(step, kinked(step))
    assert 0.2 * before < prefill_seconds(model, 512, 2000) < 5 * before
    assert model.seconds(step) == pytest.approx(kinked(step), rel=0.05)


def test_prompts_that_come_again_are_learnt_anew() -> None:
    model = after_prompts()
    for _ in range(10 * STALE_STEPS):
        model.observe(decodes(8), 2 * kinked(decodes(8)))
    for _ in range(2 * STALE_STEPS):
        for step in (prompt(128), prompt(256), decodes(8)):
            model.observe(step, 2 * kinked(step))
    assert model.seconds(prompt(200)) == pytest.approx(2 * kinked(prompt(200)), rel=0.1)


def test_a_line_is_found_through_what_transfers_took() -> None:
    time = TransferTime()
    for blocks in (4, 64, 16, 128) * 6:
        time.observe(blocks, 0.01 + 0.002 * blocks)
    assert time.predict(32) == pytest.approx(0.074, rel=0.01) and time.predict(256) == pytest.approx(0.522, rel=0.01)
    time = TransferTime()
    for _ in range(5):
        time.observe(10, 0.5)
    assert time.predict(20) == pytest.approx(1.0), "of transfers of one length others are in proportion"


def cost_of(*observed: tuple[str, float], times: int = 1) -> RestoreCost:
    """Return costs where 128 tokens of a prompt take 0.13 s, and eight blocks of tiers took so long."""
    model = LatencyModel()
    for tokens in (16, 64, 256, 512) * 12:
        model.observe(prompt(tokens), 0.002 + 1e-3 * tokens)
    cost = RestoreCost(model)
    observe(cost, *observed, times=times)
    return cost


def observe(cost: RestoreCost, *observed: tuple[str, float], times: int) -> None:
    for _ in range(times):
        for tier, seconds in observed:
            cost.observe(tier, 8, seconds)


def loads(cost: RestoreCost, tier: str, times: int = 1) -> int:
    """Return how often eight blocks are loaded and not computed."""
    return sum(cost.choose_load(tier, 8, 0, 128) for _ in range(times))


def test_before_anything_is_known_blocks_are_loaded() -> None:
    assert RestoreCost(LatencyModel()).choose_load("folder", 8, 0, 128)
    assert loads(cost_of(), "folder") and cost_of().seconds("folder", 8) is None


def test_what_is_quicker_is_done_and_the_slower_one_tried_now_and_then() -> None:
    cost = cost_of(("quick", 0.02), ("slow", 2.0), times=8)
    assert loads(cost, "quick", RETRY_INTERVAL * 2) == RETRY_INTERVAL * 2
    assert loads(cost, "slow", RETRY_INTERVAL * 3) == 3
    observe(cost, ("slow", 0.02), times=60)
    assert loads(cost, "slow"), "a disk that has become fast is noticed"


def test_a_disk_that_stood_still_once_is_forgotten_soon() -> None:
    cost = cost_of(("folder", 0.02), times=8)
    observe(cost, ("folder", 25.0), times=1)
    assert loads(cost, "folder")
    observe(cost, ("folder", 25.0), times=3)
    assert loads(cost, "folder", 3) < 3, "one that stays slow is not"


def test_what_took_no_time_is_not_thought_to_take_none_for_ever() -> None:
    cost = cost_of(("folder", 0.0))
    observe(cost, ("folder", 2.0), times=12)
    assert cost.seconds("folder", 8) > 0.5
