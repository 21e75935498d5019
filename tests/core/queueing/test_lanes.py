"""Lanes: which share a step, what is kept for which, and what is preempted for which."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from inflight.core.queueing.lanes import LaneError
from inflight.core.queueing.step_target import EFFICIENCY
from inflight.core.types.request import RequestRefused

from .. import inspect_scheduler as inside
from ..builders import request
from ..harness import BATCH, INTERACTIVE, Harness, LaneSetup, Setup

ROOMY = {"num_blocks": 60, "block_size": 4, "max_rows": 4, "token_budget": 8, "max_model_len": 64}
TIGHT = {"block_size": 2, "watermark": 0.0}


def harness_of(*lanes: LaneSetup, **more: Any) -> Harness:
    return Harness(Setup(lanes=lanes or (INTERACTIVE, BATCH), **{**ROOMY, **more}))


def lane(name: str = "interactive", **settings: Any) -> LaneSetup:
    return LaneSetup(name, settings=tuple(settings.items()))


def batch(**settings: Any) -> LaneSetup:
    return lane("batch", background=True, **settings)


def several(lane: str, count: int, tokens: int = 1, output: int = 4) -> Any:
    """Requests named by their lane and number."""
    return [request(f"{lane} {n}", [n % 8] * tokens, output=output, lane=lane) for n in range(count)]


def tokens(harness: Harness) -> dict[str, int]:
    """Run the next step; return its tokens by lane."""
    used: Counter[str] = Counter()
    for chunk in harness.plan().chunks:
        used[harness.owners[chunk.sequence_id][0].request.lane] += chunk.length
    harness.commit()
    return dict(used)


def running(harness: Harness) -> list[str]:
    return sorted(one.request.lane for one in inside.running(harness.scheduler))


def test_the_batch_lane_fills_what_the_interactive_lane_leaves() -> None:
    harness = harness_of()
    harness.add(request("batch", [0] * 40, lane="batch"))
    assert tokens(harness) == {"batch": 8}
    harness.add(request("chat", [1] * 5, lane="interactive", output=3))
    assert [tokens(harness) for _ in range(2)] == [{"interactive": 5, "batch": 3}, {"interactive": 1, "batch": 7}]


# -- preemption for others --------------------------------------------------------------------------------------


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("scarce", [{"max_rows": 2}, {"num_blocks": 12, "max_rows": 9}])
def test_background_work_is_preempted_at_once_when_rows_or_blocks_are_short(depth: int, scarce: dict[str, int]) -> None:
    harness = harness_of(depth=depth, **scarce)
    harness.add(*several("batch", 2, tokens=4, output=20))
    harness.steps(6)
    harness.add(request("chat", [5] * 30, output=2))
    harness.steps(depth)
    assert "interactive" in running(harness) and harness.scheduler.stats().preemptions > 0


def test_no_sequence_is_preempted_in_vain() -> None:
    """The interactive lane has all the rows that it may have: preempting batch work would not let a request join."""
    harness = harness_of(lane(max_rows=1), BATCH, max_rows=3)
    harness.add(*several("batch", 2, output=20), *several("interactive", 2, output=20))
    harness.steps(8)
    assert harness.scheduler.stats().preemptions == 0


def test_a_foreground_newcomer_is_not_preempted_for_the_background() -> None:
    harness = harness_of(num_blocks=4, block_size=2, watermark=0.0)
    harness.add(request("batch", [0] * 4, output=9, lane="batch"))
    harness.step()  # it holds two blocks, both full
    harness.add(request("chat", [1] * 4, output=2))
    assert tokens(harness) == {"interactive": 4} and running(harness) == ["interactive"]
    assert not any(one.preempt_pending for one in inside.running(harness.scheduler))


def test_no_background_newcomer_takes_the_blocks_that_were_freed_for_a_foreground_request() -> None:
    """Not either as one that goes before a prompt that runs; else others are preempted for the foreground request."""
    interactive, batch_lane = (("max_tokens", 6),), (("background", True), ("chunk", 3))
    harness = harness_of(
        LaneSetup("interactive", "priority", interactive),
        LaneSetup("batch", "priority", batch_lane),
        **(TIGHT | {"num_blocks": 34, "max_rows": 6, "token_budget": 14, "max_model_len": 60}),
        **{"preemption": "swap", "host_blocks": 20, "transfer_polls": (1,)},
    )

    def names() -> list[str]:
        harness.step()
        return sorted(one.request.request_id for one in inside.running(harness.scheduler))

    harness.add(request("victim", [1] * 12, output=30, lane="batch", priority=9))
    harness.steps(5)
    harness.add(request("runs", [0] * 40, output=2, lane="batch", priority=5))
    harness.steps(1)
    harness.add(request("head", [0, 1, 1] * 6, output=2))
    assert names() == ["runs"], "the victim's blocks are stored first"
    harness.add(request("first", [1, 0] * 3, output=2, priority=-1))  # it has the lane's tokens of a step
    harness.add(request("urgent", [1, 1, 0] * 2, output=2, lane="batch", priority=1))
    seen = [names() for _ in range(8)]
    assert all("runs" in one for one in seen), "no more is preempted for the head"
    joined = next(index for index, one in enumerate(seen) if "head" in one)
    assert ["first", "runs"] in seen[:joined] and not any("urgent" in one for one in seen[:joined])
    harness.drain()


def test_rows_that_the_batch_lane_keeps_are_not_preempted() -> None:
    harness = harness_of(INTERACTIVE, batch(min_rows=1), max_rows=2)
    harness.add(*several("batch", 2, output=9))
    harness.step()
    harness.add(*several("interactive", 3, output=9))
    harness.steps(2)
    assert running(harness) == ["batch", "interactive"] and harness.scheduler.stats().preemptions == 1


# -- what a request waits for -----------------------------------------------------------------------------------


def waited(harness: Harness, name: str) -> tuple[dict[str, float], dict[str, float]]:
    """For what a request queued, and behind which lanes, in shares."""
    harness.drain()
    timings = next(one.ended.timings for one in harness.clients if one.request.request_id == name)
    by, behind = (
        {key: ms / timings.queue_ms for key, ms in of.items() if ms}
        for of in (timings.queued_by, timings.queued_behind)
    )
    return by, behind


@pytest.mark.parametrize(
    ("scarce", "reason"),
    [({"max_rows": 3}, "rows"), ({"num_blocks": 18, "max_rows": 9, "watermark": 0.0}, "blocks")],
)
def test_the_account_names_the_lane_with_most_rows_or_blocks(scarce: dict[str, Any], reason: str) -> None:
    harness = harness_of(token_budget=24, prefix_caching=False, **scarce)
    harness.add(request("short", [0] * 4, output=5), *several("interactive", 2, tokens=20, output=9))
    harness.steps(3)
    harness.add(request("late", [3] * 20, output=2, lane="batch"))
    assert waited(harness, "late") == ({reason: 1.0}, {"interactive": 1.0})


def test_a_newcomer_waits_behind_the_lane_whose_prompts_take_the_tokens() -> None:
    harness = harness_of(INTERACTIVE, lane("rerank", weight=3), BATCH, max_rows=9)
    harness.add(request("chat", [0] * 12, output=2), request("long", [1] * 60, lane="rerank", output=2))
    harness.step()
    harness.add(request("late", [2] * 2, output=2), request("behind all", [3] * 2, output=2, lane="batch"))
    for name in ("late", "behind all"):
        assert waited(harness, name) == ({"budget": 1.0}, {"rerank": 1.0})


def test_a_request_waits_behind_its_own_lane_for_what_that_may_not_have() -> None:
    harness = harness_of(lane(max_tokens=2), BATCH, max_rows=9)
    harness.add(request("chat", [0] * 12, output=2), request("batch", [1] * 60, lane="batch", output=2))
    harness.add(request("late", [2] * 2, output=2))
    assert waited(harness, "late") == ({"share": 1.0}, {"interactive": 1.0})
    harness = harness_of(INTERACTIVE, batch(max_rows=1), max_rows=9)
    harness.add(*several("interactive", 4, output=9), *several("batch", 2))
    assert waited(harness, "batch 1") == ({"rows": 1.0}, {"batch": 1.0})


# -- shares of a step -------------------------------------------------------------------------------------------


def test_foreground_lanes_share_prompts_by_weight_and_what_one_leaves_is_the_others() -> None:
    harness = harness_of(lane(weight=3.0), lane("rerank"))
    harness.add(request("chat", [0] * 40), request("rank", [1] * 40, lane="rerank"))
    assert tokens(harness) == {"interactive": 6, "rerank": 2}
    harness.abort("chat")
    assert tokens(harness) == {"rerank": 8}
    harness.drain()
    harness.add(request("chat", [0], output=30))
    harness.step()
    harness.add(request("rank", [1] * 40, lane="rerank", cache_salt="new"))
    assert tokens(harness) == {"interactive": 1, "rerank": 7}, "a lane of decodes keeps no share of the prompts"


@pytest.mark.parametrize(
    ("lanes", "prompts", "expected"),
    [
        (
            (lane(weight=9.0), lane("rerank", min_tokens=3), batch(min_tokens=2)),
            {"interactive": 1, "rerank": 1, "batch": 1},
            {"interactive": 3, "rerank": 3, "batch": 2},
        ),
        ((lane(max_tokens=4), batch(chunk=1)), {"interactive": 1, "batch": 3}, {"interactive": 4, "batch": 3}),
    ],
)
def test_tokens_that_are_kept_and_caps_and_chunks(
    lanes: tuple[LaneSetup, ...], prompts: dict[str, int], expected: dict[str, int]
) -> None:
    harness = harness_of(*lanes)
    harness.add(*(one for name, count in prompts.items() for one in several(name, count, tokens=40)))
    assert tokens(harness) == expected


def test_an_early_end_leaves_lanes_what_they_keep_and_background_decodes_their_token() -> None:
    harness = harness_of(INTERACTIVE, lane("rerank", min_tokens=2), batch(min_tokens=1), early_end=3)
    harness.add(request("old", [7], lane="batch", output=9))
    harness.step()
    harness.add(*(request(name, [n] * 40, lane=name) for n, name in enumerate(("rerank", "batch"))))
    harness.add(request("chat", [3] * 3, output=2))
    assert tokens(harness) == {"interactive": 3, "rerank": 2, "batch": 2}
    assert tokens(harness)["interactive"] == 1


def test_a_background_prompt_that_is_complete_ends_no_step() -> None:
    harness = harness_of(early_end=3)
    harness.add(*several("batch", 2, tokens=4, output=2))
    assert tokens(harness) == {"batch": 8}


def test_lanes_share_by_weight_though_every_prompt_ends_its_step() -> None:
    harness = harness_of(lane(weight=3.0), lane("rerank"), early_end=1, max_rows=40, num_blocks=200)
    harness.add(*(request(f"chat {n}", [n % 8, n // 8, 2, 3], output=1) for n in range(40)))
    harness.add(*(request(f"rank {n}", [n % 8, n // 8, 3, 2], lane="rerank", output=1) for n in range(40)))
    total: Counter[str] = Counter()
    for _ in range(24):
        total.update(tokens(harness))
    assert total == {"interactive": 72, "rerank": 24}


# -- refusals ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("asked", "words", "comes_again"),
    [
        (request("c"), "2 requests wait in the lane 'interactive' already, and at most 2 may", True),
        (request("c", n=3), "asks for 3 samples, but at most 2 requests may wait in the lane", False),
    ],
)
def test_a_full_lane_refuses_and_says_when_to_try_again(asked: Any, words: str, comes_again: bool) -> None:
    harness = harness_of(lane(queue_limit=2))
    harness.add(request("a"), request("b"))
    with pytest.raises(RequestRefused, match=words) as refused:
        harness.scheduler.add(asked, 0.0)
    assert refused.value.retry_after > 0 if comes_again else refused.value.retry_after is None


def test_unknown_lanes_and_priorities_that_mean_nothing_are_refused() -> None:
    harness = harness_of()
    assert harness.refuse(request("a", lane="slow")) == "There is no lane 'slow'; there are: interactive, batch."
    assert "priority 1 has no effect: the lane 'interactive' uses --policy fcfs" in harness.refuse(
        request("a", priority=1)
    )


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
        ({"step_target": "off"}, "to a background lane"),
        *(
            ({"background": True, "step_target": target}, "give auto, off or seconds above 0, to a background lane")
            for target in ("fast", 0, -1.0, True)
        ),
    ],
)
def test_settings_that_cannot_be(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(LaneError) as wrong:
        harness_of(lane(**settings), BATCH)
    assert words in str(wrong.value)


# -- the step target of the background --------------------------------------------------------------------------


def beside(harness: Harness) -> dict[str, int]:
    """Tokens of a step beside one interactive stream, once the engine has learnt what steps of any size take."""
    for size in range(1, 8):
        harness.add(request(f"alone {size}", [size] * size, output=6))
        harness.steps(6)
    harness.add(request("chat", [0], output=40), *several("batch", 3, output=50))
    harness.steps(25)
    return tokens(harness)


def test_beside_a_stream_the_step_is_the_shortest_that_is_worth_its_setup() -> None:
    """A step of n tokens takes (n + 2) / 64 s, so that a full one has 12 tokens in 14 / 64 s."""
    shorter = sum(n / (n + 2) <= EFFICIENCY * 12 / 14 for n in range(1, 13))
    assert beside(harness_of(token_budget=12)) == {"interactive": 1, "batch": shorter - 1}
    assert sum(beside(harness_of(INTERACTIVE, batch(step_target="off"))).values()) == 4


# -- prompts beside streams and background work -----------------------------------------------------------------


def prompt_beside(prompt: int, others: int = 0, **settings: Any) -> list[int]:
    """Lengths of the chunks of an interactive prompt beside an interactive stream and background work."""
    harness = harness_of(INTERACTIVE, batch(**settings), token_budget=64, num_blocks=400, max_rows=8, max_model_len=400)
    harness.add(request("chat", [0], output=200), *several("batch", 2, output=200))
    harness.steps(30)
    harness.add(request("asked", [3, 4] * (prompt // 2), output=2))
    harness.add(*(request(f"more {n}", [n, n + 1] * 30, output=2) for n in range(others)))
    lengths = []
    for _ in range(8):
        harness.steps(1)
        lengths += [
            chunk.length
            for chunk in harness.plans[-1].chunks
            if harness.owners[chunk.sequence_id][0].request.request_id == "asked"
        ]
    return [length for length in lengths if length > 1]


def test_a_prompt_that_fills_most_of_a_step_is_computed_in_two_even_parts() -> None:
    """A step beside the stream has room for 63 tokens."""
    assert prompt_beside(36) == [36]
    assert prompt_beside(60) == [30, 30]
    assert prompt_beside(100) == [50, 50], "no more steps than it takes"
    assert prompt_beside(170) == [63, 54, 53], "the last two steps are even"


def test_prompts_are_not_divided_while_others_wait_or_where_the_lane_has_no_automatic_target() -> None:
    assert prompt_beside(60, others=2)[0] == 60
    assert prompt_beside(60, step_target="off") == prompt_beside(60, step_target=9.0) == [60]


@pytest.mark.parametrize("fits", [2, 3])
def test_a_target_in_seconds_bounds_the_step(fits: int) -> None:
    """A step of n tokens takes (n + 2) / 64 s."""
    harness = harness_of(INTERACTIVE, batch(step_target=(fits + 2.1) / 64))
    assert beside(harness) == {"interactive": 1, "batch": fits - 1}


def test_without_foreground_work_the_batch_lane_has_the_whole_step() -> None:
    harness = harness_of()
    harness.add(*several("batch", 4, tokens=30, output=9))
    harness.steps(30)
    harness.add(request("more", [5] * 40, lane="batch"))
    while "more" not in {one.request.request_id for one in inside.running(harness.scheduler)}:
        harness.step()
    assert tokens(harness)["batch"] == 8
