"""Lanes: who shares a step with whom, what is kept for whom, and who gives way."""

from __future__ import annotations

from typing import Any

import pytest

from inflight.core.policies.fcfs import Fcfs
from inflight.core.queueing.lanes import LaneError, LaneSettings
from inflight.core.types.plan import BatchPlan
from inflight.core.types.request import RequestRefused

from .. import inspect_scheduler as inside
from ..builders import request
from ..harness import BATCH, INTERACTIVE, Harness, LaneSetup, Setup

ROOMY = {"num_blocks": 60, "block_size": 4, "max_rows": 4, "token_budget": 8, "max_model_len": 64}


def harness_of(*lanes: LaneSetup, **more: Any) -> Harness:
    return Harness(Setup(lanes=lanes or (INTERACTIVE, BATCH), **{**ROOMY, **more}))


def lane(name: str, **settings: Any) -> LaneSetup:
    return LaneSetup(name, settings=tuple(settings.items()))


def tokens(harness: Harness) -> dict[str, int]:
    """Of the next step, by lane."""
    plan = harness.plan()
    assert isinstance(plan, BatchPlan)
    used: dict[str, int] = {}
    for chunk in plan.chunks:
        name = harness.owners[chunk.sequence_id][0].request.lane
        used[name] = used.get(name, 0) + chunk.length
    harness.commit()
    return used


def test_the_batch_lane_fills_what_the_interactive_lane_leaves() -> None:
    harness = harness_of()
    harness.add(request("batch", [0] * 40, lane="batch"))
    assert tokens(harness) == {"batch": 8}
    harness.add(request("chat", [1] * 5, lane="interactive", output=3))
    assert tokens(harness) == {"interactive": 5, "batch": 3}
    assert tokens(harness) == {"interactive": 1, "batch": 7}
    harness.drain()


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("scarce", [{"max_rows": 2}, {"num_blocks": 12, "max_rows": 9}])
def test_it_gives_way_at_once_when_rows_or_blocks_are_short(depth: int, scarce: dict[str, int]) -> None:
    harness = harness_of(depth=depth, **scarce)
    harness.add(*(request(f"batch {n}", [n] * 4, output=20, lane="batch") for n in range(2)))
    for _ in range(6):
        harness.step()
    harness.add(request("chat", [5] * 30, output=2))
    for _ in range(depth):
        harness.step()
    assert any(one.request.request_id == "chat" for one in inside.running(harness.scheduler))
    assert harness.scheduler.stats().preemptions > 0
    harness.drain()


def waited_behind(harness: Harness, name: str) -> tuple[dict[str, float], dict[str, float]]:
    """For what a request queued, and behind which lanes: what it waited at all, in shares."""
    harness.drain()
    timings = next(one.ended.timings for one in harness.clients if one.request.request_id == name)
    assert timings.queue_ms > 0
    by = {reason: ms / timings.queue_ms for reason, ms in timings.queued_by.items() if ms}
    return by, {lane: ms / timings.queue_ms for lane, ms in timings.queued_behind.items()}


@pytest.mark.parametrize(
    ("scarce", "reason"),
    [({"max_rows": 3}, "rows"), ({"num_blocks": 18, "max_rows": 9, "watermark": 0.0}, "blocks")],
)
def test_the_account_names_the_lane_that_has_most_of_what_lacks(scarce: dict[str, Any], reason: str) -> None:
    harness = harness_of(depth=1, token_budget=24, prefix_caching=False, **scarce)
    harness.add(request("short", [0] * 4, output=5), *(request(f"r{n}", [n] * 20, output=9) for n in (1, 2)))
    for _ in range(3):
        harness.step()
    harness.add(request("late", [3] * 20, output=2, lane="batch"))
    assert waited_behind(harness, "late") == ({reason: 1.0}, {"interactive": 1.0})


def test_behind_which_lanes_prompt_tokens_a_newcomer_waits() -> None:
    harness = harness_of(INTERACTIVE, lane("rerank", weight=3), BATCH, max_rows=9)
    harness.add(request("chat", [0] * 12, output=2), request("long", [1] * 60, lane="rerank", output=2))
    harness.step()
    harness.add(request("late", [2] * 2, output=2), request("behind all", [3] * 2, output=2, lane="batch"))
    assert waited_behind(harness, "late") == ({"budget": 1.0}, {"rerank": 1.0})
    assert waited_behind(harness, "behind all") == ({"budget": 1.0}, {"rerank": 1.0})


def test_who_waits_for_tokens_that_its_own_lane_may_not_have_waits_behind_that() -> None:
    harness = harness_of(lane("interactive", max_tokens=2), BATCH, max_rows=9)
    harness.add(request("chat", [0] * 12, output=2), request("batch", [1] * 60, lane="batch", output=2))
    harness.add(request("late", [2] * 2, output=2))
    assert waited_behind(harness, "late") == ({"share": 1.0}, {"interactive": 1.0})


def test_who_waits_for_rows_that_its_own_lane_may_not_have_waits_behind_that() -> None:
    harness = harness_of(INTERACTIVE, lane("batch", background=True, max_rows=1), max_rows=9)
    harness.add(*(request(f"chat {n}", [n], output=9) for n in range(4)))
    harness.add(*(request(f"batch {n}", [n], output=4, lane="batch") for n in range(2)))
    assert waited_behind(harness, "batch 1") == ({"rows": 1.0}, {"batch": 1.0})


def test_nobody_gives_way_in_vain() -> None:
    """The interactive lane has all the rows that it may have: pushing batch work out would not let anyone in."""
    harness = harness_of(lane("interactive", max_rows=1), BATCH, max_rows=3)
    harness.add(*(request(f"batch {n}", [n], output=20, lane="batch") for n in range(2)))
    harness.add(*(request(f"chat {n}", [n], output=20) for n in range(2)))
    for _ in range(8):
        harness.step()
    assert harness.scheduler.stats().preemptions == 0
    harness.drain()


def test_what_the_batch_lane_keeps_it_need_not_give_up() -> None:
    harness = harness_of(INTERACTIVE, lane("batch", background=True, min_rows=1), max_rows=2)
    harness.add(*(request(f"batch {n}", [n], output=9, lane="batch") for n in range(2)))
    harness.step()
    harness.add(*(request(f"chat {n}", [n], output=9) for n in range(3)))
    harness.step()
    harness.step()
    assert sorted(one.request.lane for one in inside.running(harness.scheduler)) == ["batch", "interactive"]
    assert harness.scheduler.stats().preemptions == 1
    harness.drain()


def test_a_newcomer_of_the_foreground_is_never_the_one_that_makes_room_for_the_background() -> None:
    harness = harness_of(num_blocks=4, block_size=2, watermark=0.0)
    harness.add(request("batch", [0] * 4, output=9, lane="batch"))
    harness.step()  # it holds two blocks, both full
    harness.add(request("chat", [1] * 4, output=2))
    assert tokens(harness) == {"interactive": 4}
    assert [one.request.lane for one in inside.running(harness.scheduler)] == ["interactive"]
    assert not any(one.preempt_pending for one in inside.running(harness.scheduler))
    harness.drain()


def test_foreground_lanes_share_prompts_by_weight_and_what_one_leaves_is_the_others() -> None:
    harness = harness_of(lane("interactive", weight=3.0), lane("rerank"))
    harness.add(request("chat", [0] * 40), request("rank", [1] * 40, lane="rerank"))
    assert tokens(harness) == {"interactive": 6, "rerank": 2}
    harness.abort("chat")
    assert tokens(harness) == {"rerank": 8}
    harness.drain()


def test_a_lane_with_nothing_but_decodes_keeps_no_share_of_the_prompts() -> None:
    harness = harness_of(INTERACTIVE, lane("rerank"))
    harness.add(request("chat", [0], output=30))
    harness.step()
    harness.add(request("rank", [1] * 40, lane="rerank"))
    assert tokens(harness) == {"interactive": 1, "rerank": 7}
    harness.drain()


def test_tokens_that_are_kept_and_caps_and_chunks() -> None:
    harness = harness_of(
        lane("interactive", weight=9.0), lane("rerank", min_tokens=3), lane("batch", background=True, min_tokens=2)
    )
    names = ("interactive", "rerank", "batch")
    harness.add(*(request(name, [n] * 40, lane=name) for n, name in enumerate(names)))
    assert tokens(harness) == {"interactive": 3, "rerank": 3, "batch": 2}
    harness.drain()
    harness = harness_of(lane("interactive", max_tokens=4), lane("batch", background=True, chunk=1))
    harness.add(request("chat", [0] * 40), *(request(f"{n}", [n] * 9, lane="batch") for n in range(3)))
    assert tokens(harness) == {"interactive": 4, "batch": 3}
    harness.drain()


def test_an_early_end_leaves_lanes_what_they_keep_and_background_decodes_their_token() -> None:
    kept = (lane("rerank", min_tokens=2), lane("batch", background=True, min_tokens=1))
    harness = harness_of(INTERACTIVE, *kept, early_end=3)
    harness.add(request("old", [7], lane="batch", output=9))
    harness.step()
    harness.add(*(request(name, [n] * 40, lane=name) for n, name in enumerate(("rerank", "batch"))))
    harness.add(request("chat", [3] * 3, output=2))
    assert tokens(harness) == {"interactive": 3, "rerank": 2, "batch": 2}
    assert tokens(harness)["interactive"] == 1
    harness.drain()


def test_a_background_prompt_that_is_complete_ends_no_step() -> None:
    harness = harness_of(early_end=3)
    harness.add(*(request(f"{n}", [n] * 4, lane="batch", output=2) for n in range(2)))
    assert tokens(harness) == {"batch": 8}
    harness.drain()


def test_lanes_share_by_weight_though_every_prompt_ends_its_step() -> None:
    harness = harness_of(lane("interactive", weight=3.0), lane("rerank"), early_end=1, max_rows=40, num_blocks=200)
    harness.add(*(request(f"chat {n}", [n % 8, n // 8, 2, 3], output=1) for n in range(40)))
    harness.add(*(request(f"rank {n}", [n % 8, n // 8, 3, 2], lane="rerank", output=1) for n in range(40)))
    total: dict[str, int] = {}
    for _ in range(24):
        for name, count in tokens(harness).items():
            total[name] = total.get(name, 0) + count
    assert total == {"interactive": 72, "rerank": 24}
    harness.drain()


def test_what_a_lane_keeps_but_cannot_use_is_not_lost() -> None:
    """Its first one waits for blocks that others hold."""
    harness = harness_of(
        INTERACTIVE, lane("batch", background=True, min_tokens=8), num_blocks=6, block_size=2, watermark=0.0
    )
    harness.add(request("chat", [0] * 9, output=1), request("batch", [1] * 6, lane="batch", output=1))
    harness.drain()


def test_a_full_lane_refuses_and_says_when_to_try_again() -> None:
    harness = harness_of(lane("interactive", queue_limit=2))
    harness.add(request("a"), request("b"))
    with pytest.raises(
        RequestRefused, match=r"2 requests wait in the lane 'interactive' already, and at most 2 may"
    ) as full:
        harness.scheduler.add(request("c"), 0.0)
    assert full.value.retry_after is not None and full.value.retry_after > 0
    with pytest.raises(
        RequestRefused, match="asks for 3 samples, but at most 2 requests may wait in the lane"
    ) as never:
        harness.scheduler.add(request("c", n=3), 0.0)
    assert never.value.retry_after is None
    harness.drain()


def test_unknown_lanes_and_priorities_that_mean_nothing_are_refused() -> None:
    harness = harness_of()
    assert harness.refuse(request("a", lane="slow")) == "There is no lane 'slow'; there are: interactive, batch."
    assert "has priority 1, but the lane 'interactive' is served by fcfs" in harness.refuse(request("a", priority=1))


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"weight": 0}, "weight 0; give a number above 0"),
        ({"weight": float("inf")}, "weight inf; give a number above 0, at most 1,000,000"),
        ({"min_rows": 3, "max_rows": 2}, "keeps 3 rows but may have at most 2"),
        ({"min_tokens": -1}, "keeps -1 tokens"),
        ({"chunk": 0}, "chunk 0; give a whole number"),
        ({"queue_limit": 0}, "queue_limit 0"),
        ({"min_rows": 5}, "keep 5 rows for themselves, but a step has 4"),
        ({"min_tokens": 9}, "keep 9 tokens for themselves, but a step has 8"),
        ({"weight": "2"}, "weight '2'; give a number"),
        ({"background": "yes"}, "background 'yes'; give true or false"),
        ({"max_rows": 1.5}, "max_rows 1.5; give a whole number"),
        ({"queue_limit": float("nan")}, "queue_limit nan; give a whole number"),
        ({"min_rows": 4}, "keep all 4 rows for themselves, so that batch would never have one"),
    ],
)
def test_settings_that_cannot_be(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(LaneError) as wrong:
        harness_of(lane("interactive", **settings), BATCH)
    assert words in str(wrong.value)


def test_a_lane_without_limits() -> None:
    assert LaneSettings(name="x", policy=Fcfs()).max_rows is None


def beside(harness: Harness, name: str = "chat") -> dict[str, int]:
    """Tokens of a step beside one interactive stream, once the engine has learnt what steps take."""
    harness.add(
        request(name, [0], output=40), *(request(f"{name} {n}", [n], output=50, lane="batch") for n in range(3))
    )
    for _ in range(25):
        harness.step()
    return tokens(harness)


def test_beside_a_stream_the_batch_lane_adds_no_more_than_the_stream_is_used_to() -> None:
    """By itself the stream has steps of one token, so that there is no room; without a target nothing is bounded."""
    with_target, without = harness_of(), harness_of(INTERACTIVE, lane("batch", background=True, step_target="off"))
    for harness in (with_target, without):
        harness.add(request("alone", [0], output=40))
        for _ in range(40):
            harness.step()
    assert sum(beside(with_target).values()) < sum(beside(without).values()) == 4
    for harness in (with_target, without):
        harness.drain()


def test_a_target_in_seconds_bounds_the_step() -> None:
    """A step of n tokens takes (n + 2) / 64 s."""
    for fits in (2, 3):
        harness = harness_of(INTERACTIVE, lane("batch", background=True, step_target=(fits + 2.1) / 64))
        assert beside(harness) == {"interactive": 1, "batch": fits - 1}
        harness.drain()


def test_without_foreground_work_the_batch_lane_has_the_whole_step() -> None:
    harness = harness_of()
    harness.add(*(request(f"{n}", [n] * 30, output=9, lane="batch") for n in range(4)))
    for _ in range(30):
        harness.step()
    harness.add(request("more", [5] * 40, lane="batch"))
    while "more" not in {one.request.request_id for one in inside.running(harness.scheduler)}:
        harness.step()
    assert tokens(harness)["batch"] == 8
    harness.drain()


@pytest.mark.parametrize("target", ["fast", 0, -1.0, True])
def test_step_targets_that_mean_nothing(target: Any) -> None:
    with pytest.raises(LaneError, match="give auto, off or seconds above 0, to a background lane"):
        LaneSettings(name="x", policy=Fcfs(), background=True, step_target=target)
    with pytest.raises(LaneError, match="to a background lane"):
        LaneSettings(name="x", policy=Fcfs(), step_target="off")
