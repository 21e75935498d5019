"""The census against what the plans said, on an engine in miniature."""

from __future__ import annotations

from core.builders import request
from core.harness import Setup
from inflight.core.scheduling.census import NAMED
from inflight.core.types.plan import BatchPlan, Sampled, StepResult

SMALL = Setup(num_blocks=8, block_size=4, max_rows=2, token_budget=16)


def test_it_names_who_runs_and_who_waits_for_what() -> None:
    scheduler = SMALL.scheduler()
    for index in range(3):
        scheduler.add(request(f"r{index}", prompt=[index] * 9), now=0.0)
    plan = scheduler.plan(0.0)
    assert isinstance(plan, BatchPlan)
    census = scheduler.census()
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
    census = scheduler.census()
    assert {block for block, count in enumerate(census.ref_counts) if count} == held and not census.evictable
    scheduler.commit(plan, StepResult(plan.step, (Sampled(0, (1,)),), 0.1), 0.1)
    census = scheduler.census()
    assert not any(census.ref_counts) and len(census.evictable) == 2, "two full blocks can be found"
    assert set(census.evictable) < held


def test_of_many_it_names_a_few_and_all_where_all_are_asked_for() -> None:
    scheduler = SMALL.scheduler()
    for index in range(3 * NAMED):
        scheduler.add(request(f"r{index}"), now=0.0)
    lane = scheduler.census().lanes[0]
    assert lane.waiting == 3 * NAMED and len(lane.named) == NAMED
    assert lane.named[0].number == 0, "the next one is among them"
    assert len(scheduler.census(whole=True).lanes[0].named) == 3 * NAMED
