"""The minimum share of background lanes: its size, and that no work is computed twice for it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from breadth import first_of

from inflight.core.queueing.lanes import CHUNK, MAX_DEFICIT, MAX_RESERVED_STEPS, MinShare, MinShareError
from inflight.core.types.plan import BatchPlan

from .. import inspect_scheduler as inside
from ..builders import request
from ..harness import INTERACTIVE, Harness, LaneSetup, Setup

STEP = 0.25  # seconds
MINUTE = round(60 / STEP)  # steps
SATURATED = Setup(num_blocks=330, block_size=4, max_rows=8, token_budget=64, max_model_len=256, lane_floor=0.05)


class Flood:
    """Foreground work that would take everything, for as long as it goes on, and background work that waits."""

    def __init__(self, setup: Setup, output: int = 20, prompt: int = 12, background: tuple[int, int] = (40, 20)):
        self.harness = Harness(setup)
        self.count = 0
        self.output, self.prompt, self.background = output, prompt, background
        self.tokens: list[dict[str, int]] = []  # of each step, by lane

    def step(self, background: bool = True) -> None:
        waiting = self.harness.scheduler.stats().lanes
        for lane, wanted in (("interactive", True), ("batch", background)):
            while wanted and next(one.waiting for one in waiting if one.name == lane) < 3:
                self.add(lane)
                waiting = self.harness.scheduler.stats().lanes
        before = len(self.harness.plans)
        self.harness.step()
        self.harness.now += STEP - 0.25
        for plan in self.harness.plans[before:]:
            self.tokens.append(self.by_lane(plan))

    def add(self, lane: str) -> None:
        self.count += 1
        prompt, output = (self.prompt, self.output) if lane == "interactive" else self.background
        digits = [int(digit, 8) for digit in f"{self.count:04o}"[-4:]]  # no two prompts begin alike
        self.harness.add(request(f"{self.count}", (digits * prompt)[:prompt], output=output, lane=lane))

    def by_lane(self, plan: BatchPlan) -> dict[str, int]:
        used = {"interactive": 0, "batch": 0}
        for chunk in plan.chunks:
            used[self.harness.owners[chunk.sequence_id][0].request.lane] += chunk.length
        return used

    def share(self, first: int, last: int) -> float:
        steps = self.tokens[first:last]
        return sum(one["batch"] for one in steps) / sum(sum(one.values()) for one in steps)


LONG, PROMPTS, TALKATIVE = {"output": 150}, {"output": 3, "prompt": 60}, {"background": (8, 100)}


@pytest.mark.parametrize(
    ("change", "work"),
    first_of(
        [
            ({}, {}),
            ({"strategy": "adaptive"}, PROMPTS),
            ({"strategy": "continuous"}, LONG),
            ({"depth": 2, "num_blocks": 60}, TALKATIVE),
            ({"strategy": "static", "batch_size": 4}, {}),
            ({"max_rows": 1}, {}),
            ({}, LONG),
            ({}, PROMPTS),
            ({}, TALKATIVE),
            ({"strategy": "adaptive"}, {}),
            ({"strategy": "continuous"}, PROMPTS),
            ({"early_end": 8}, PROMPTS),
            ({"token_budget": 8}, {}),
            ({"max_rows": 2}, LONG),
            ({"num_blocks": 60, "prefix_caching": False}, {}),
            ({"num_blocks": 100, "allocation": "reserve-request"}, LONG),
            ({"lane_floor": 0.3}, PROMPTS),
            ({"strategy": "dynamic", "batch_size": 4}, TALKATIVE),
        ],
        6,
    ),
    ids=str,
)
def test_a_foreground_that_never_rests_leaves_the_minimum_share(change: dict[str, Any], work: dict[str, Any]) -> None:
    """No protected sequence is preempted, so that nothing of it is lost."""
    setup = replace(SATURATED, **change)
    flood = Flood(setup, **work)
    kept: set[int] = set()
    for _ in range(MINUTE + MINUTE // 2):
        flood.step()
        running = inside.running(flood.harness.scheduler)
        ended = {one for one in kept if flood.harness.owners[one][0].ended}
        assert kept - ended <= {one.number for one in running}, "it was preempted"
        kept = {one.number for one in running if one.protected}
    tokens, total = sum(one["batch"] for one in flood.tokens), sum(sum(one.values()) for one in flood.tokens)
    assert tokens + 4 * CHUNK >= setup.lane_floor * total


def test_what_is_kept_goes_on_when_the_last_of_the_foreground_gives_up_its_blocks() -> None:
    """It comes first in a small step and lacks a block; the foreground, asked next, lacks one too and gives way."""
    harness = Harness(Setup(num_blocks=6, block_size=1, max_rows=2, token_budget=1, lane_floor=0.4))
    harness.add(request("chat", [0], output=6), request("batch", [1], output=6, lane="batch"))
    for _ in range(40):
        for sequence in inside.running(harness.scheduler):
            sequence.protected = sequence.request.lane == "batch"
        if harness.scheduler.idle:
            break
        harness.step()
    harness.drain()


def test_a_large_background_request_does_not_hold_the_foreground_up_for_long() -> None:
    """It needs nearly all blocks, of which a long foreground request has some: that is preempted after a while."""
    setup = Setup(num_blocks=100, block_size=4, max_rows=8, token_budget=64, max_model_len=390, lane_floor=0.05)
    harness, count, rows = Harness(setup), 0, []
    harness.add(request("long", [3, 3, 3], output=300))
    for _ in range(8):
        harness.step()
    harness.add(request("large", [4, 5] * 185, output=5, lane="batch"))
    for _ in range(150):
        while sum(name.startswith("short") for name in harness.alive) < 12:
            count += 1
            harness.add(request(f"short{count}", [1, count % 7, count // 7 % 7, count // 49], output=10))
        harness.step()
        lanes = {one.name: one.running for one in harness.scheduler.stats().lanes}
        rows.append(lanes["interactive"])
    assert "large" not in harness.alive
    assert sum(one < 4 for one in rows) < 2 * MAX_RESERVED_STEPS


def test_without_a_floor_it_has_what_is_left() -> None:
    flood = Flood(replace(SATURATED, lane_floor=0.0), output=40)
    for _ in range(MINUTE):
        flood.step()
    assert flood.share(60, MINUTE) == 0.0


def test_the_foreground_keeps_nearly_all_the_rest() -> None:
    flood = Flood(SATURATED)
    for _ in range(2 * MINUTE):
        flood.step()
    assert flood.share(0, 2 * MINUTE) <= 0.1


def test_it_costs_nothing_while_no_background_work_waits() -> None:
    plans = []
    for share in (0.0, 0.05):
        flood = Flood(replace(SATURATED, lane_floor=share))
        for _ in range(100):
            flood.step(background=False)
        plans.append(flood.harness.plans)
    assert plans[0] == plans[1]


def test_background_lanes_share_it_by_weight() -> None:
    lanes = (
        INTERACTIVE,
        LaneSetup("batch", settings=(("background", True), ("weight", 3.0))),
        LaneSetup("third", settings=(("background", True),)),
    )
    min_share, setup = MinShare(0.08), replace(SATURATED, lanes=lanes)
    first, second = list(setup.scheduler()._lanes.all())[1:]
    min_share.add([first, second], [first, second], 1000)
    assert (first.deficit.tokens, second.deficit.tokens) == (pytest.approx(60), pytest.approx(20))
    min_share.add([first, second], [first], 10)
    assert second.deficit.tokens == 0.0, "a lane without work has no deficit"


def test_tokens_ahead_are_repaid_within_a_bound() -> None:
    (lane,) = list(SATURATED.scheduler()._lanes.all())[1:]
    min_share = MinShare(0.05)
    min_share.add([lane], [lane], 1000)
    lane.deficit.take(5000, protected=True)
    assert lane.deficit.tokens == -MAX_DEFICIT
    lane.deficit.take(5000, protected=False)
    assert lane.deficit.tokens == -MAX_DEFICIT, "what foreground work left is not held against the lane"


@pytest.mark.parametrize("share", [-0.1, 1.0, float("nan")])
def test_shares_that_cannot_be(share: float) -> None:
    with pytest.raises(MinShareError, match="from 0"):
        MinShare(share)
