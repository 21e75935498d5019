"""Blocks of a tier: kept beside the steps, brought for those that wait, and computed where they cannot be had."""

from __future__ import annotations

from dataclasses import replace

import pytest

from inflight.core.types.plan import BatchPlan, WaitForTransfers

from .. import inspect_scheduler as inside
from ..builders import request
from ..harness import Harness, LaneSetup, Setup
from ..remembered import RememberingTier
from ..test_state_machine import check_against_alone, check_ledgers

PROMPT = (0, 1, 1, 0, 1, 0, 0, 1, 1)


def kept(**changes: object) -> Setup:
    """An engine with a tier, in which the prompt is kept."""
    setup = Setup(num_blocks=20, token_budget=20, tier=RememberingTier(2), **changes)  # type: ignore[arg-type]
    first = Harness(replace(setup, transfer_polls=(), lost_transfers=0))
    first.add(request("first", PROMPT, output=4))
    first.drain()
    assert setup.tier is not None and len(setup.tier.held) == 6, "all full blocks, those of the answer too"
    return setup


def finish(harness: Harness) -> None:
    harness.drain()
    for client in harness.clients:
        check_against_alone(client, harness.setup)
    check_ledgers(harness)


def cached(harness: Harness, at: int = 0) -> int:
    ended = harness.clients[at].ended
    assert ended is not None
    return ended.timings.cached_tokens


def test_what_one_engine_has_kept_another_begins_behind() -> None:
    harness = Harness(kept())
    harness.add(request("again", PROMPT, output=6))
    finish(harness)
    assert cached(harness) == 8, "the last token is computed, since the next is drawn from it"
    assert harness.scheduler.snapshot().tiers.brought == 4


def test_nobody_stored_anew_what_is_there() -> None:
    setup = kept()
    harness = Harness(setup)
    harness.add(request("again", PROMPT, output=4))
    harness.drain()
    assert not any(one.kind == "store" for plan in harness.plans for one in plan.transfers)


def test_while_it_is_brought_others_run_and_no_step_waits() -> None:
    harness = Harness(kept(transfer_polls=(4,), max_rows=1))
    harness.add(request("again", PROMPT, output=4))
    plan = harness.plan()
    assert isinstance(plan, BatchPlan) and not plan.chunks and [one.kind for one in plan.transfers] == ["load"]
    assert not inside.running(harness.scheduler), "it waits without a row"
    harness.commit()
    harness.add(request("other", [1, 1, 1], output=3))
    plan = harness.plan()
    assert isinstance(plan, BatchPlan) and plan.chunks, "who comes behind it is computed meanwhile"
    finish(harness)
    assert cached(harness) == 8


def test_with_nothing_else_to_do_the_engine_waits_for_it() -> None:
    harness = Harness(kept(transfer_polls=(4,)))
    harness.add(request("again", PROMPT, output=4))
    harness.plan()
    harness.commit()
    assert isinstance(harness.plan(), WaitForTransfers)
    finish(harness)
    timings = harness.clients[0].ended.timings  # type: ignore[union-attr]
    assert timings.queued_by["kv"] == pytest.approx(timings.queue_ms) and timings.queue_ms > 0


def test_what_does_not_come_is_computed() -> None:
    harness = Harness(kept(transfer_polls=(2,), lost_transfers=1))
    harness.add(request("again", PROMPT, output=6))
    finish(harness)
    assert cached(harness) == 0
    assert harness.scheduler.snapshot().tiers.failed == 4


def test_equal_prompts_wait_for_the_same_blocks() -> None:
    harness = Harness(kept(transfer_polls=(3,)))
    harness.add(*(request(name, PROMPT, output=4) for name in ("a", "b", "c")))
    finish(harness)
    loads = [one for plan in harness.plans for one in plan.transfers if one.kind == "load"]
    assert len(loads) == 1 and [cached(harness, at) for at in range(3)] == [8] * 3


def test_another_salt_finds_nothing() -> None:
    harness = Harness(kept())
    harness.add(request("other", PROMPT, output=4, cache_salt="tenant"))
    finish(harness)
    assert cached(harness) == 0


def test_one_that_ends_while_it_waits_leaves_nothing_behind() -> None:
    harness = Harness(kept(transfer_polls=(5,)))
    harness.add(request("again", PROMPT, output=4))
    harness.step()
    harness.abort("again")
    harness.drain()
    assert harness.scheduler.snapshot().idle_blocks == 4, "it is cached for whoever comes next"


def test_what_a_failed_step_has_left_is_not_kept() -> None:
    tier = RememberingTier(2)
    harness = Harness(Setup(num_blocks=20, token_budget=20, tier=tier, depth=2))
    harness.add(request("a", PROMPT, output=4))
    harness.plan(fail=True)
    harness.commit()
    harness.drain()
    assert not tier.held


def test_nobody_gives_way_to_one_that_then_stands_apart() -> None:
    """There is no room for what could be brought before somebody has given way; who did has not done so for nothing."""
    lanes = (LaneSetup("interactive", policy="priority"),)
    harness = Harness(kept(lanes=lanes, transfer_polls=(4,), max_rows=2, max_model_len=64))
    harness.add(request("low", [1, 0] * 17, output=6, priority=9))
    harness.step()
    harness.step()
    harness.add(request("high", PROMPT, output=4, priority=0))
    while not harness.scheduler.snapshot().preemptions:
        harness.step()
    assert [one.request.request_id for one in inside.running(harness.scheduler)] == ["high"]
    finish(harness)


def test_what_vanishes_behind_its_source_costs_a_computation() -> None:
    setup = kept(transfer_polls=(2,))
    harness = Harness(setup)
    harness.add(request("again", PROMPT, output=6))
    harness.plan()
    assert setup.tier is not None
    setup.tier.held.clear()
    finish(harness)
    assert cached(harness) == 0
