"""The minimum share of background lanes: its size, and that no work is computed twice for it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from breadth import first_of

from inflight.core.queueing.lanes import CHUNK, MAX_DEFICIT, MAX_RESERVED_STEPS, MinShare, MinShareError

from .. import inspect_scheduler as inside
from ..builders import request
from ..harness import BATCH, INTERACTIVE, Harness, LaneSetup, Setup

MINUTE = 240  # steps of a quarter of a second
SATURATED = Setup(num_blocks=330, block_size=4, max_rows=8, token_budget=64, max_model_len=256, lane_floor=0.05)


class Flood:
    """Foreground work that would take everything, for as long as it goes on, and background work that waits."""

    def __init__(self, setup: Setup, output: int = 20, prompt: int = 12, background: tuple[int, int] = (40, 20)):
        self.harness = Harness(setup)
        self.work = {"interactive": (prompt, output), "batch": background}  # tokens of prompts and outputs

    def step(self, background: bool = True) -> None:
        for lane in self.work if background else ("interactive",):
            while next(one.waiting for one in self.harness.scheduler.stats().lanes if one.name == lane) < 3:
                prompt, output = self.work[lane]
                number = len(self.harness.clients) + 1
                digits = [int(digit, 8) for digit in f"{number:04o}"[-4:]]  # no two prompts begin alike
                self.harness.add(request(f"{number}", (digits * prompt)[:prompt], output=output, lane=lane))
        self.harness.step()

    def share(self, first: int = 0) -> float:
        """Return the share of the background in the tokens of all steps from the first on."""
        tokens = {"interactive": 0, "batch": 0}
        for plan in self.harness.plans[first:]:
            for chunk in plan.chunks:
                tokens[self.harness.owners[chunk.sequence_id][0].request.lane] += chunk.length
        return tokens["batch"] / sum(tokens.values())


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
    total = sum(chunk.length for plan in flood.harness.plans for chunk in plan.chunks)
    assert flood.share() * total + 4 * CHUNK >= setup.lane_floor * total


def test_a_protected_sequence_goes_on_when_the_last_of_the_foreground_is_preempted() -> None:
    """It comes first in a small step and lacks a block; the foreground, asked next, lacks one too and is preempted."""
    harness = Harness(Setup(num_blocks=6, block_size=1, max_rows=2, token_budget=1, lane_floor=0.4))
    harness.add(request("chat", [0], output=6), request("batch", [1], output=6, lane="batch"))
    for _ in range(40):
        for sequence in inside.running(harness.scheduler):
            sequence.protected = sequence.request.lane == "batch"
        if not harness.scheduler.idle:
            harness.step()
    assert harness.scheduler.idle


def test_a_large_background_request_does_not_hold_the_foreground_up_for_long() -> None:
    """It needs nearly all blocks, of which a long foreground request has some: that is preempted after a while."""
    harness = Harness(replace(SATURATED, num_blocks=100, max_model_len=390), request("long", [3, 3, 3], output=300))
    harness.steps(8)
    harness.add(request("large", [4, 5] * 185, output=5, lane="batch"))
    rows = []
    for _ in range(150):
        while sum(name.startswith("short") for name in harness.alive) < 12:
            count = len(harness.clients)
            harness.add(request(f"short{count}", [1, count % 7, count // 7 % 7, count // 49], output=10))
        harness.step()
        rows.append(harness.scheduler.stats().lanes[0].running)
    assert "large" not in harness.alive
    assert sum(one < 4 for one in rows) < 2 * MAX_RESERVED_STEPS


def test_without_a_minimum_share_it_has_what_is_left() -> None:
    flood = Flood(replace(SATURATED, lane_floor=0.0), output=40)
    for _ in range(MINUTE):
        flood.step()
    assert flood.share(60) == 0.0


def test_the_foreground_keeps_nearly_all_the_rest() -> None:
    flood = Flood(SATURATED)
    for _ in range(2 * MINUTE):
        flood.step()
    assert flood.share() <= 0.1


def test_a_burst_has_the_engine_for_itself_as_far_as_idle_time_before_makes_up_for_it() -> None:
    flood = Flood(SATURATED, **PROMPTS)
    flood.harness.add(*(request(f"before{n}", [n, 1, 2, 3] * 10, output=40, lane="batch") for n in range(8)))
    flood.harness.steps(12)
    begin = len(flood.harness.plans)

    def tokens() -> int:
        return sum(chunk.length for plan in flood.harness.plans[begin:] for chunk in plan.chunks)

    while tokens() * SATURATED.lane_floor < MAX_DEFICIT:
        assert not any(one.protected for one in inside.running(flood.harness.scheduler))
        flood.step()
    for _ in range(MINUTE):
        flood.step()
    assert flood.share(begin) * tokens() + MAX_DEFICIT + 4 * CHUNK >= SATURATED.lane_floor * tokens()


def test_it_costs_nothing_while_no_background_work_waits() -> None:
    plans = []
    for share in (0.0, 0.05):
        flood = Flood(replace(SATURATED, lane_floor=share))
        for _ in range(100):
            flood.step(background=False)
        plans.append([*flood.harness.plans])
    assert plans[0] == plans[1]


def test_background_lanes_share_it_by_weight() -> None:
    heavy = LaneSetup("heavy", settings=(("background", True), ("weight", 3.0)))
    setup = replace(SATURATED, lanes=(INTERACTIVE, heavy, BATCH))
    min_share, (_, first, second) = MinShare(0.08), setup.scheduler()._lanes.all()
    min_share.add([first, second], [first, second], 1000)
    assert (first.deficit.tokens, second.deficit.tokens) == (pytest.approx(60), pytest.approx(20))
    min_share.add([first, second], [first], 10)
    assert second.deficit.tokens == 0.0, "a lane without work has no deficit"


def test_tokens_ahead_are_repaid_within_a_bound() -> None:
    _, lane = SATURATED.scheduler()._lanes.all()
    MinShare(0.05).add([lane], [lane], 1000)
    lane.deficit.take(5000)
    assert lane.deficit.tokens == -MAX_DEFICIT


@pytest.mark.parametrize("share", [-0.1, 1.0, float("nan")])
def test_shares_that_cannot_be(share: float) -> None:
    with pytest.raises(MinShareError, match="from 0"):
        MinShare(share)
