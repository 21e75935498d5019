"""Asynchronous transfers: blocks are held by transfers, sequences wait for their keys and values, lost ones are
computed again."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from inflight.core.kv.block_pool import BlockPool
from inflight.core.kv.state_checkpoints import CheckpointSlots
from inflight.core.kv.transfers import Transfers
from inflight.core.types.events import FinishedEvent
from inflight.core.types.plan import HOST, BatchPlan, WaitForTransfers
from inflight.engine.clock import VirtualClock
from inflight.engine.loop import EngineLoop
from inflight.testing.null import NullExecutor

from ..builders import request
from ..harness import BATCH, POLICIES, STRATEGIES, Harness, LaneSetup, Setup
from .test_host_tier import SCARCE, pressed

SLOW = replace(SCARCE, transfer_polls=(4,))


def until(harness: Harness, kind: str) -> BatchPlan:
    """Step until such a transfer has begun; return its plan."""
    while not harness.plans or not harness.plans[-1].copies(kind):
        harness.step()
    return harness.plans[-1]


def test_a_transfer_holds_its_blocks_until_it_has_ended() -> None:
    pool = BlockPool(2, lambda block: None, ())
    transfers, ended = Transfers(pool, CheckpointSlots(0), 1, asynchronous=True), []
    (block,) = pool.allocate(1)
    transfer_id = transfers.begin("store", HOST, (block,), (7,), ended.append)
    (transfer,) = transfers.take_planned()
    assert (transfer.transfer_id, transfer.blocks, transfer.remote_blocks) == (transfer_id, (block,), (7,))
    pool.release([block])
    assert pool.held == 1 and ended == []
    transfers.end_transfer(transfer_id, True)
    assert pool.held == 0 and ended == [True] and not transfers.in_flight


def test_a_transfer_holds_its_checkpoints_and_frees_one_that_was_not_loaded() -> None:
    pool, slots = BlockPool(2, lambda block: None, ()), CheckpointSlots(2)
    transfers = Transfers(pool, slots, 2, asynchronous=True)
    (block,), slot = pool.allocate(1), slots.take_to_load()
    assert slot is not None
    loads = [transfers.begin("load", "shelf", (block, slot), (7, 8), groups=(1, 2)) for _ in range(2)]
    pool.release([block])
    assert transfers.blocks_in_flight() == (block, block) and slots.used == 1
    transfers.end_transfer(loads[0], False)
    assert (pool.held, slots.used) == (1, 1)
    transfers.end_transfer(loads[1], False)
    assert (pool.held, slots.used) == (0, 0)


def test_synchronous_transfers_have_ended_when_the_plan_is_made() -> None:
    pool = BlockPool(2, lambda block: None, ())
    transfers, ended = Transfers(pool, CheckpointSlots(0), 1, asynchronous=False), []
    transfers.begin("load", HOST, (0,), (7,), ended.append)
    transfers.begin("store", HOST, (1,), (3,), ended.append)
    assert [one.kind for one in transfers.take_planned()] == ["store", "load"]
    assert ended == [True, True] and not transfers.in_flight and transfers.take_planned() == ()


def test_a_sequence_waits_for_its_load_while_others_run() -> None:
    harness = pressed(replace(SLOW, transfer_polls=(0, 4, 4, 4)))
    loaded = until(harness, "load")
    (transfer_id,) = [one.transfer_id for one in loaded.transfers]
    assert not loaded.chunks, "no other sequence was left"
    harness.add(request("c", [0], output=3))
    before = len(harness.plans)
    while transfer_id in harness.loading:
        harness.step()
    assert {chunk.sequence_id for plan in harness.plans[before:] for chunk in plan.chunks} <= {2}
    harness.drain()
    assert harness.timings(1).swapped_blocks > 0 and harness.timings(1).recomputed_tokens < 2


@pytest.mark.parametrize("lost", [1, 2])
def test_tokens_of_a_lost_transfer_are_computed_again(lost: int) -> None:
    """All transfers are lost, or the load alone."""
    harness = pressed(replace(SLOW, lost_transfers=lost))
    harness.drain()
    assert harness.timings(1).recomputed_tokens > 1 and harness.scheduler.stats().preemptions == 1


def test_without_work_the_plan_waits_for_transfers() -> None:
    harness = pressed(SLOW)
    until(harness, "load")
    assert harness.plan() == WaitForTransfers() and not harness.scheduler.idle


def loop_of(setup: Setup, executor: NullExecutor) -> EngineLoop:
    loop = EngineLoop(setup.scheduler(), executor, VirtualClock(), depth=setup.depth)
    loop.add(request("a", [0] * 5, output=6))
    loop.add(request("b", [1] * 5, output=6))
    return loop


@pytest.mark.parametrize("depth", [1, 2])
def test_the_loop_waits_for_transfers(depth: int) -> None:
    """The answers are those of an executor with synchronous transfers."""
    answers = []
    for setup in (replace(SCARCE, depth=depth), replace(SLOW, depth=depth)):
        events = loop_of(setup, NullExecutor(setup.capacity, fate=setup.fate)).run()
        answers.append(sorted((event.request_id, event.token_ids) for event in events if hasattr(event, "token_ids")))
    assert answers[0] == answers[1]


class Forgetful(NullExecutor):
    """Begin a plan's transfers and never report them, or fail before or after that."""

    def __init__(self, setup: Setup, where: str, kind: str):
        super().__init__(setup.capacity, fate=setup.fate)
        self.where, self.kind = where, kind

    def submit(self, plan: BatchPlan):
        hit = self.where and any(one.kind == self.kind for one in plan.transfers)
        where, self.where = self.where, "" if hit else self.where
        if hit and where == "before":
            raise KeyboardInterrupt
        pending = super().submit(plan)
        if hit and where == "after":
            raise KeyboardInterrupt
        if hit:
            self.in_flight.clear()
        return pending


@pytest.mark.parametrize("where", ["before", "after", "lost"])
@pytest.mark.parametrize("kind", ["store", "load"])
def test_unreported_transfers_fail(where: str, kind: str) -> None:
    executor = Forgetful(SLOW, where, kind)
    loop, events = loop_of(SLOW, executor), []
    while not loop.idle:
        try:
            events += loop.advance()
        except KeyboardInterrupt:
            assert where != "lost"
    assert executor.where == "" and sum(isinstance(event, FinishedEvent) for event in events) == 2
    assert loop.stats().kv.held_blocks == loop.stats().kv.used_host_blocks == 0


def test_recovery_waits_for_transfers_in_flight() -> None:
    executor = NullExecutor(SLOW.capacity, fate=SLOW.fate)
    loop = loop_of(SLOW, executor)
    while not executor.in_flight:
        loop.advance()
    loop._scheduler_call.interrupted = True  # as a Ctrl-C within one leaves it
    loop.add(request("c", [0], output=1))
    assert not executor.in_flight and loop.stats().kv.held_blocks == 0
    loop.run()


def drawn(seed: int) -> tuple[Setup, random.Random]:
    draw = random.Random(seed)
    return Setup(
        num_blocks=draw.randint(4, 12),
        block_size=draw.randint(1, 4),
        max_rows=draw.randint(1, 4),
        token_budget=draw.randint(1, 9),
        prefix_caching=draw.random() < 0.6,
        watermark=draw.choice([0.0, 0.1, 0.5]),
        depth=draw.randint(1, 2),
        strategy=draw.choice(STRATEGIES),
        batch_size=1,
        preemption=draw.choice(["swap", "swap", "auto"]),
        host_blocks=draw.choice([2, 30]),
        copy_seconds=1e-4,
        lane_floor=draw.choice([0.0, 0.4]),
        lanes=(LaneSetup(policy=draw.choice(POLICIES)), BATCH),
        transfer_polls=draw.choice([(0,), (1, 0, 3), (2, 5)]),
        lost_transfers=draw.choice([0, 1, 2, 3]),
    ), draw
