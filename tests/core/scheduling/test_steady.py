"""The steady case: plans, events and what is cached are those of the plan builder, which looks at each sequence."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any
from unittest import mock

import pytest
from msgspec import structs

from inflight.core.scheduling import scheduler as scheduling
from inflight.core.scheduling.steady import advance
from inflight.core.scheduling.step import Step
from inflight.core.types.plan import BatchPlan
from inflight.core.types.request import RequestRefused
from inflight.core.types.sampling import Adapter

from .. import inspect_scheduler as inside
from ..builders import request
from ..harness import INTERACTIVE, Harness, LaneSetup, Setup
from ..tiers import RememberingTier

CALM = Setup(num_blocks=60, block_size=4, max_rows=4, token_budget=16, max_model_len=64, lanes=(INTERACTIVE,))
ADAPTERS = (None, Adapter("a", ""), Adapter("b", ""))
SETUPS = [
    CALM,
    replace(CALM, depth=2),
    replace(CALM, num_blocks=14),
    replace(CALM, num_blocks=14, depth=2, host_blocks=30, preemption="swap", transfer_polls=(1, 0, 3)),
    replace(CALM, max_rows=2, host_blocks=30, host_is_tier=True, num_blocks=16),
    replace(CALM, right_drafts=0.5, drafting="measured"),
    replace(CALM, strategy="adaptive", lanes=(INTERACTIVE, LaneSetup("batch", settings=(("background", True),)))),
    replace(CALM, session_eviction=True, num_blocks=20, depth=2),
    replace(CALM, lanes=(LaneSetup(settings=(("weight", 0.7),)), LaneSetup("other", settings=(("weight", 0.9),)))),
]


def run(setup: Setup, seed: int, *, may_advance: bool) -> tuple[list[BatchPlan], list[Any], int]:
    """Drive a scheduler for a while; return its plans, what is cached and what each lane was served, and how
    many plans were advanced."""
    draws, advanced = random.Random(seed), 0

    def counted(*given: Any) -> BatchPlan | None:
        nonlocal advanced
        plan = advance(*given) if may_advance else None
        advanced += plan is not None
        return plan

    with mock.patch.object(scheduling, "advance", counted):
        harness = Harness(setup)
        for number in range(120):
            if draws.random() < 0.06:
                prompt = [draws.randrange(3)] * draws.randint(1, 9) + [draws.randrange(7)]
                lane = draws.choice(setup.lanes).name
                try:
                    output = draws.randint(1, 40)
                    adapter = ADAPTERS[number % 3] if setup.adapter_slots else None
                    harness.add(
                        structs.replace(request(f"{number}", prompt, lane=lane, output=output), adapter=adapter)
                    )
                except RequestRefused:
                    continue
            elif draws.random() < 0.01 and harness.alive:
                harness.abort(draws.choice(sorted(harness.alive)))
            else:
                harness.step(fail=draws.random() < 0.005)
        harness.drain()
    return harness.plans, [inside.findable(harness.scheduler), inside.services(harness.scheduler)], advanced


@pytest.mark.parametrize("setup", SETUPS, ids=range(len(SETUPS)))
def test_it_changes_no_plan(setup: Setup) -> None:
    total = 0
    for seed in range(6):
        plans, cached, advanced = run(setup, seed, may_advance=True)
        slow_plans, slow_cached, _ = run(setup, seed, may_advance=False)
        assert plans == slow_plans and cached == slow_cached
        total += advanced
    assert total > 50 or setup.right_drafts is not None, "hardly a step was steady"


WITH_MORE = [
    replace(CALM, num_blocks=28, windows=(0, 5), depth=2),
    replace(CALM, snapshots=6),
    replace(CALM, adapter_slots=1, depth=2, transfer_polls=(1, 0)),
    replace(CALM, right_drafts=0.5, drafting="executor", depth=2),
    replace(CALM, strategy="slack", num_blocks=14),
    replace(CALM, lane_floor=0.4, lanes=(INTERACTIVE, LaneSetup("batch", settings=(("background", True),))), depth=2),
    replace(CALM, num_blocks=14, distinct_prompts=True),
]


@pytest.mark.parametrize("setup", SETUPS + WITH_MORE, ids=range(len(SETUPS + WITH_MORE)))
def test_decodes_are_added_as_any_chunk_is(setup: Setup) -> None:
    """Where the plan builder looks at each sequence; the state machine draws other setups."""
    for seed in range(2):
        plans, cached, _ = run(setup, seed, may_advance=False)
        with mock.patch.object(Step, "add_decode", lambda step, one, blocks: step.add_chunk(one, 1, blocks)):
            slow_plans, slow_cached, _ = run(setup, seed, may_advance=False)
        assert plans == slow_plans and cached == slow_cached


def test_it_goes_on_while_others_wait_for_a_row() -> None:
    plans: list[BatchPlan | None] = []
    with mock.patch.object(scheduling, "advance", lambda *given: plans.append(advance(*given)) or plans[-1]):
        harness = Harness(replace(CALM, max_rows=2), *(request(f"{number}", [number], output=9) for number in range(4)))
        harness.steps(4)
        assert plans[-1] is not None
        assert harness.scheduler.stats().lanes[0].blocked_on == "rows"
        harness.drain()


@pytest.mark.parametrize("num_blocks", range(16, 24))
@pytest.mark.parametrize("where", ["host", "tier"])
def test_stores_that_begin_with_a_step_take_blocks_before_its_decodes(where: str, num_blocks: int) -> None:
    """As many blocks are available as rows need, and some of them are stored first: then a sequence is preempted."""

    def plans(may_advance: bool) -> list[BatchPlan]:
        setup = replace(CALM, block_size=1, num_blocks=num_blocks, token_budget=64, transfer_polls=(1,))
        if where == "host":
            setup = replace(setup, host_blocks=30, host_is_tier=True)
        else:
            setup = replace(setup, tier=RememberingTier(1))
        with mock.patch.object(scheduling, "advance", advance if may_advance else lambda *given: None):
            harness = Harness(setup)
            for number in range(7):
                harness.add(request(f"before {number}", [number, 1, 2]))
                while harness.alive:
                    harness.step()
            for number in range(setup.max_rows):
                harness.add(request(f"{number}", [6, 6, number, 5], output=40))
            harness.drain()
        return harness.plans

    assert plans(True) == plans(False)
