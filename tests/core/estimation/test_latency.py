"""Times: steps follow the evidence, and stay without it; blocks are loaded or computed, whichever is faster."""

from __future__ import annotations

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


def kinked(held: Features) -> float:
    """A machine on which the first twelve tokens cost nothing."""
    return 0.01 + 0.0005 * max(0, held.tokens - 12) + 1e-8 * (held.decode_context + held.prefill_context)


def after_prompts() -> LatencyModel:
    model = LatencyModel()
    for number in range(60):
        for held in (prompt(64 + number % 5 * 32), decodes(40)):
            model.observe(held, kinked(held))
    return model


@pytest.mark.parametrize("steps", [10 * STALE_STEPS, 60 * STALE_STEPS])
def test_while_no_prompts_come_their_price_stays_within_reason(steps: int) -> None:
    """The batch shrinks meanwhile, and what tokens cost with it: that is not laid to the context of old prompts."""
    model = after_prompts()
    before = prefill_seconds(model, 512, 2000)
    for number in range(steps):
        held = decodes(max(4, 40 - 2 * number // STALE_STEPS), 700 + number)
        model.observe(held, kinked(held))
    assert 0.2 * before < prefill_seconds(model, 512, 2000) < 5 * before
    assert model.seconds(held) == pytest.approx(kinked(held), rel=0.05)


def test_prompts_that_come_again_are_learnt_anew() -> None:
    model = after_prompts()
    for _ in range(10 * STALE_STEPS):
        model.observe(decodes(8), 2 * kinked(decodes(8)))
    for _ in range(2 * STALE_STEPS):
        for held in (prompt(128), prompt(256), decodes(8)):
            model.observe(held, 2 * kinked(held))
    assert model.seconds(prompt(200)) == pytest.approx(2 * kinked(prompt(200)), rel=0.1)


def learnt(seconds_per_token: float) -> LatencyModel:
    """Return a model of steps that take so long for each token of prompts."""
    model = LatencyModel()
    for tokens in (16, 64, 256, 512) * 12:
        model.observe(Features(tokens, 1, 1, 0, tokens * tokens / 2), 0.002 + seconds_per_token * tokens)
    return model


def test_a_line_is_found_through_what_transfers_took() -> None:
    time = TransferTime()
    for blocks in (4, 64, 16, 128) * 6:
        time.observe(blocks, 0.01 + 0.002 * blocks)
    assert time.predict(32) == pytest.approx(0.074, rel=0.01) and time.predict(256) == pytest.approx(0.522, rel=0.01)


def test_of_transfers_of_one_length_the_time_of_others_is_in_proportion() -> None:
    time = TransferTime()
    for _ in range(5):
        time.observe(10, 0.5)
    assert time.predict(20) == pytest.approx(1.0)


def test_before_anything_is_known_blocks_are_brought() -> None:
    assert RestoreCost(LatencyModel()).choose_load("folder", 8, 0, 128)
    unmeasured = RestoreCost(learnt(1e-3))
    assert unmeasured.choose_load("folder", 8, 0, 128) and unmeasured.seconds("folder", 8) is None


def test_what_is_quicker_is_done_and_the_slower_one_tried_now_and_then() -> None:
    cost = RestoreCost(learnt(1e-3))  # 128 tokens take 0.13 s
    for _ in range(8):
        cost.observe("quick", 8, 0.02)
        cost.observe("slow", 8, 2.0)
    assert all(cost.choose_load("quick", 8, 0, 128) for _ in range(RETRY_INTERVAL * 2))
    assert sum(cost.choose_load("slow", 8, 0, 128) for _ in range(RETRY_INTERVAL * 3)) == 3
    for _ in range(60):
        cost.observe("slow", 8, 0.02)
    assert cost.choose_load("slow", 8, 0, 128), "a disk that has become fast is noticed"


def test_a_disk_that_stood_still_once_is_forgotten_soon() -> None:
    cost = RestoreCost(learnt(1e-3))  # 128 tokens take 0.13 s
    for _ in range(8):
        cost.observe("folder", 8, 0.02)
    cost.observe("folder", 8, 25.0)
    assert cost.choose_load("folder", 8, 0, 128)
    for _ in range(3):
        cost.observe("folder", 8, 25.0)
    assert not all(cost.choose_load("folder", 8, 0, 128) for _ in range(3)), "one that stays slow is not"


def test_what_took_no_time_is_not_thought_to_take_none_for_ever() -> None:
    cost = RestoreCost(learnt(1e-3))
    cost.observe("folder", 8, 0.0)
    for _ in range(12):
        cost.observe("folder", 8, 2.0)
    assert (cost.seconds("folder", 8) or 0.0) > 0.5
