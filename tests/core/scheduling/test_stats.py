"""Dumps and accounts against what the plans said, on an engine in miniature."""

from __future__ import annotations

from typing import Any

from inflight.core.scheduling.stats import MAX_NAMED
from inflight.core.types.plan import Sampled, StepResult

from ..builders import request
from ..harness import Setup

SMALL = Setup(num_blocks=8, block_size=4, max_rows=2, token_budget=16)


def scheduler_of(count: int, setup: Setup = SMALL, tokens: int = 9, **params: Any) -> Any:
    """Add requests with prompts of their own to a scheduler."""
    scheduler = setup.scheduler()
    for index in range(count):
        scheduler.add(request(f"r{index}", [index % 8] * tokens, **params), 0.0)
    return scheduler


def step(scheduler: Any, now: float) -> None:
    plan = scheduler.plan(now)
    sampled = tuple(Sampled(chunk.sequence_id, (1,)) for chunk in plan.chunks if chunk.sample)
    scheduler.commit(plan, StepResult(plan.step, sampled, 0.1), now + 0.1)


def test_a_dump_names_what_runs_and_what_waits_for_what() -> None:
    scheduler = scheduler_of(3)
    plan, dump = scheduler.plan(0.0), scheduler.dump()
    assert dump.next_number == 3
    running = {one.number: (one.row, one.blocks, one.num_computed) for one in dump.running}
    assert running == {one.sequence_id: (one.row, one.new_blocks, one.length) for one in plan.chunks}
    interactive, batch = dump.lanes
    assert (interactive.name, interactive.waiting, interactive.running) == ("interactive", 1, 2)
    assert interactive.blocked_on == "rows" and interactive.behind == "interactive"
    assert [one.number for one in interactive.named] == [2]
    assert (batch.waiting, batch.named) == (0, ())


def test_blocks_are_free_held_or_evictable() -> None:
    scheduler = scheduler_of(1, output=1)
    plan = scheduler.plan(0.0)
    held, dump = set(plan.chunks[0].new_blocks), scheduler.dump()
    assert {block for block, count in enumerate(dump.kv.ref_counts) if count} == held and not dump.kv.evictable
    scheduler.commit(plan, StepResult(plan.step, (Sampled(0, (1,)),), 0.1), 0.1)
    dump = scheduler.dump()
    assert not any(dump.kv.ref_counts) and len(dump.kv.evictable) == 2, "two full blocks can be found"
    assert set(dump.kv.evictable) < held


def test_of_many_waiting_sequences_a_few_are_named_and_all_where_all_are_asked_for() -> None:
    scheduler = scheduler_of(3 * MAX_NAMED, tokens=3)
    lane = scheduler.dump().lanes[0]
    assert lane.waiting == 3 * MAX_NAMED and len(lane.named) == MAX_NAMED
    assert lane.named[0].number == 0, "the next one is among them"
    assert len(scheduler.dump(whole=True).lanes[0].named) == 3 * MAX_NAMED


def test_what_a_preempted_sequence_comes_back_for_is_on_the_host() -> None:
    setup = Setup(num_blocks=8, block_size=2, max_rows=2, token_budget=16, preemption="swap", host_blocks=8)
    scheduler = scheduler_of(2, setup, tokens=6, output=8)
    now, host = 0.0, scheduler.dump().kv.host
    assert (host.num_blocks, len(host.free), host.wanted) == (8, 8, ())
    while not host.wanted:
        step(scheduler, now)
        now, host = now + 0.1, scheduler.dump().kv.host
    assert {numbers for _, numbers in host.wanted} == {(1,)}, "the lower ranked one was preempted"
    used = {block for block, _ in host.wanted}
    assert used.isdisjoint(host.free) and len(used) + len(host.free) == 8
    assert scheduler.dump(blocks=False).kv.host is None


def test_the_account_of_an_unfinished_request_is_what_its_end_would_say() -> None:
    scheduler = scheduler_of(3, output=2)
    scheduler.plan(0.0)
    of, waiting = scheduler.account("r2", 0.25)
    assert of.request_id == "r2" and waiting.queue_ms == waiting.total_ms == 250.0
    assert waiting.queued_by["rows"] == 250.0 and waiting.queued_behind == {"interactive": 250.0}
    running = scheduler.account("r0", 0.25)[1]
    assert running.prefill_ms == 250.0 and running.queue_ms == 0.0
    assert scheduler.account("r2", 0.25)[1] == waiting, "it changes nothing"
    last = scheduler.account("r2", 0.5)[1]
    assert scheduler.abort("r2", 0.5)[-1].timings == last
    assert scheduler.account("r2", 0.5) is None and scheduler.account("unknown", 0.5) is None
