"""The census against what the plans said, on an engine in miniature."""

from __future__ import annotations

from core.builders import request
from core.harness import Setup
from inflight.core.scheduling.stats import MAX_NAMED
from inflight.core.types.plan import BatchPlan, Sampled, StepResult

SMALL = Setup(num_blocks=8, block_size=4, max_rows=2, token_budget=16)


def test_it_names_who_runs_and_who_waits_for_what() -> None:
    scheduler = SMALL.scheduler()
    for index in range(3):
        scheduler.add(request(f"r{index}", prompt=[index] * 9), now=0.0)
    plan = scheduler.plan(0.0)
    assert isinstance(plan, BatchPlan)
    census = scheduler.dump()
    assert census.next_number == 3
    running = {one.number: one for one in census.running}
    assert {number: one.row for number, one in running.items()} == {
        chunk.sequence_id: chunk.row for chunk in plan.chunks
    }
    for chunk in plan.chunks:
        assert running[chunk.sequence_id].blocks == chunk.new_blocks
        assert running[chunk.sequence_id].num_computed == chunk.length
    interactive, batch = census.lanes
    assert (interactive.name, interactive.waiting, interactive.running) == ("interactive", 1, 2)
    assert interactive.stands_for == "rows" and interactive.behind == "interactive"
    assert [one.number for one in interactive.named] == [2]
    assert (batch.waiting, batch.named) == (0, ())


def test_blocks_are_free_held_or_evictable() -> None:
    scheduler = SMALL.scheduler()
    scheduler.add(request("r", prompt=[1] * 9, output=1), now=0.0)
    plan = scheduler.plan(0.0)
    assert isinstance(plan, BatchPlan)
    held = set(plan.chunks[0].new_blocks)
    census = scheduler.dump()
    assert {block for block, count in enumerate(census.ref_counts) if count} == held and not census.evictable
    scheduler.commit(plan, StepResult(plan.step, (Sampled(0, (1,)),), 0.1), 0.1)
    census = scheduler.dump()
    assert not any(census.ref_counts) and len(census.evictable) == 2, "two full blocks can be found"
    assert set(census.evictable) < held


def test_of_many_it_names_a_few_and_all_where_all_are_asked_for() -> None:
    scheduler = SMALL.scheduler()
    for index in range(3 * MAX_NAMED):
        scheduler.add(request(f"r{index}"), now=0.0)
    lane = scheduler.dump().lanes[0]
    assert lane.waiting == 3 * MAX_NAMED and len(lane.named) == MAX_NAMED
    assert lane.named[0].number == 0, "the next one is among them"
    assert len(scheduler.dump(whole=True).lanes[0].named) == 3 * MAX_NAMED


def test_what_a_preempted_sequence_comes_back_for_is_on_the_host() -> None:
    """And who is swapped out is named by its number."""
    setup = Setup(num_blocks=8, block_size=2, max_rows=2, token_budget=16, preemption="swap", host_blocks=8, depth=1)
    scheduler = setup.scheduler()
    for index in range(2):
        scheduler.add(request(f"r{index}", prompt=[index] * 6, output=8), now=0.0)
    now, host = 0.0, scheduler.dump().host
    assert host is not None and (host.num_blocks, len(host.free), host.wanted) == (8, 8, ())
    while not host.wanted:
        plan = scheduler.plan(now)
        assert isinstance(plan, BatchPlan)
        now += 0.1
        sampled = tuple(Sampled(one.sequence_id, (1,)) for one in plan.chunks if one.sample)
        scheduler.commit(plan, StepResult(plan.step, sampled, 0.1), now)
        host = scheduler.dump().host
        assert host is not None
    assert {numbers for _, numbers in host.wanted} == {(1,)}, "the lower ranked one was preempted"
    used = {block for block, _ in host.wanted}
    assert used.isdisjoint(host.free) and len(used) + len(host.free) == 8
    assert scheduler.dump(blocks=False).host is None, "nobody asked"


def test_a_living_requests_account_is_what_its_end_would_tell() -> None:
    scheduler = SMALL.scheduler()
    for index in range(3):
        scheduler.add(request(f"r{index}", prompt=[index] * 9, output=2), now=0.0)
    plan = scheduler.plan(0.0)
    assert isinstance(plan, BatchPlan)
    told = scheduler.account("r2", 0.25)
    assert told is not None and told[0].request_id == "r2"
    waiting = told[1]
    assert waiting.queue_ms == waiting.total_ms == 250.0
    assert waiting.queued_by["rows"] == 250.0 and waiting.queued_behind == {"interactive": 250.0}
    running = scheduler.account("r0", 0.25)
    assert running is not None and running[1].prefill_ms == 250.0 and running[1].queue_ms == 0.0
    assert scheduler.account("r2", 0.25) == told, "it changes nothing"
    last = scheduler.account("r2", 0.5)
    events = scheduler.abort("r2", 0.5)
    assert last is not None and events[-1].timings == last[1]  # type: ignore[union-attr]
    assert scheduler.account("r2", 0.5) is None and scheduler.account("nobody", 0.5) is None
