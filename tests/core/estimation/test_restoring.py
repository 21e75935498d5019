"""Restore or recompute, by what both were measured to take."""

from __future__ import annotations

import pytest

from inflight.core.estimation.latency import LatencyModel
from inflight.core.estimation.restoring import TRY_AGAIN, RestoreCost, TransferTime
from inflight.core.types.features import Features


def learnt(seconds_per_token: float) -> LatencyModel:
    """Of steps that take this long for each token of prompts."""
    model = LatencyModel()
    for tokens in (16, 64, 256, 512) * 12:
        model.observe(Features(tokens, 1, 1, 0, tokens * tokens / 2), 0.002 + seconds_per_token * tokens)
    return model


def test_a_line_is_found_through_what_transfers_took() -> None:
    time = TransferTime()
    for blocks in (4, 64, 16, 128) * 6:
        time.observe(blocks, 0.01 + 0.002 * blocks)
    assert time.of(32) == pytest.approx(0.074, rel=0.01) and time.of(256) == pytest.approx(0.522, rel=0.01)


def test_of_transfers_of_one_length_the_time_of_others_is_in_proportion() -> None:
    time = TransferTime()
    for _ in range(5):
        time.observe(10, 0.5)
    assert time.of(20) == pytest.approx(1.0)


def test_before_anything_is_known_blocks_are_brought() -> None:
    assert RestoreCost(LatencyModel()).brings("folder", 8, 0, 128)
    unmeasured = RestoreCost(learnt(1e-3))
    assert unmeasured.brings("folder", 8, 0, 128) and unmeasured.seconds("folder", 8) is None


def test_what_is_quicker_is_done_and_the_slower_one_tried_now_and_then() -> None:
    cost = RestoreCost(learnt(1e-3))  # 128 tokens take 0.13 s
    for _ in range(8):
        cost.brought("quick", 8, 0.02)
        cost.brought("slow", 8, 2.0)
    assert all(cost.brings("quick", 8, 0, 128) for _ in range(TRY_AGAIN * 2))
    assert sum(cost.brings("slow", 8, 0, 128) for _ in range(TRY_AGAIN * 3)) == 3
    for _ in range(60):
        cost.brought("slow", 8, 0.02)
    assert cost.brings("slow", 8, 0, 128), "a disk that has become fast is noticed"


def test_a_disk_that_stood_still_once_is_forgotten_soon() -> None:
    cost = RestoreCost(learnt(1e-3))  # 128 tokens take 0.13 s
    for _ in range(8):
        cost.brought("folder", 8, 0.02)
    cost.brought("folder", 8, 25.0)
    assert cost.brings("folder", 8, 0, 128)
    for _ in range(3):
        cost.brought("folder", 8, 25.0)
    assert not all(cost.brings("folder", 8, 0, 128) for _ in range(3)), "one that stays slow is not"


def test_what_took_no_time_is_not_thought_to_take_none_for_ever() -> None:
    cost = RestoreCost(learnt(1e-3))
    cost.brought("folder", 8, 0.0)
    for _ in range(12):
        cost.brought("folder", 8, 2.0)
    assert (cost.seconds("folder", 8) or 0.0) > 0.5
