"""The KV connector: prefixes are loaded from a tier for waiting sequences, and cached blocks are written to it."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from inflight.core.kv.checkpoint_spacing import CheckpointSpacing
from inflight.core.kv.offload_writer import OffloadWriter
from inflight.core.kv.prefix_cache import CachedBlock, PrefixCache
from inflight.core.kv.state_checkpoints import CheckpointKind, CheckpointSlots
from inflight.core.types.kv_blocks import SharedRoot
from inflight.core.types.plan import WaitForTransfers

from .. import inspect_scheduler as inside
from ..builders import request
from ..harness import Harness, LaneSetup, Setup
from ..tiers import RememberingTier

PROMPT = (0, 1, 1, 0, 1, 0, 0, 1, 1)


def kept(**changes: Any) -> Setup:
    """Return the setup of an engine with a tier that has the prompt."""
    setup = Setup(num_blocks=20, token_budget=20, tier=RememberingTier(2), **changes)
    Harness(replace(setup, transfer_polls=(), lost_transfers=0)).serve(request("first", PROMPT, output=4))
    assert len(setup.tier.held) == 6, "all full blocks, those of the answer too"
    return setup


def again(output: int = 4, **changes: Any) -> Harness:
    """Begin the prompt in another engine with that tier."""
    return Harness(kept(**changes), request("again", PROMPT, output=output))


def cached(harness: Harness) -> list[int]:
    harness.drain()
    return [client.ended.timings.cached_tokens for client in harness.clients]


def test_an_engine_begins_behind_blocks_that_another_wrote_and_writes_none_of_them_again() -> None:
    harness = again()
    assert cached(harness) == [8], "the last token is computed, since the next is drawn from it"
    assert harness.scheduler.stats().kv.tiers.brought == 4
    assert not any(one.kind == "store" for plan in harness.plans for one in plan.transfers)


def test_other_requests_run_while_blocks_are_loaded() -> None:
    harness = again(transfer_polls=(4,), max_rows=1)
    plan = harness.plan()
    assert not plan.chunks and [one.kind for one in plan.transfers] == ["load"]
    assert not inside.running(harness.scheduler), "it waits without a row"
    harness.commit()
    harness.add(request("other", [1, 1, 1], output=3))
    assert harness.plan().chunks, "the next request is computed meanwhile"
    assert cached(harness)[0] == 8


def test_an_engine_without_other_work_waits_for_the_load() -> None:
    harness = again(transfer_polls=(4,))
    harness.plan()
    harness.commit()
    assert harness.plan() == WaitForTransfers()
    harness.drain()
    timings = harness.timings(0)
    assert timings.queued_by["kv"] == pytest.approx(timings.queue_ms) and timings.queue_ms > 0


def test_blocks_whose_load_failed_are_computed() -> None:
    harness = again(transfer_polls=(2,), lost_transfers=1)
    assert cached(harness) == [0] and harness.scheduler.stats().kv.tiers.failed == 4


def test_equal_prompts_wait_for_the_same_blocks() -> None:
    harness = again(transfer_polls=(3,))
    harness.add(*(request(name, PROMPT, output=4) for name in "bc"))
    assert cached(harness) == [8] * 3
    assert sum(one.kind == "load" for plan in harness.plans for one in plan.transfers) == 1


def test_a_request_aborted_during_its_load_holds_nothing() -> None:
    harness = again(transfer_polls=(5,))
    harness.step()
    harness.abort("again")
    harness.drain()
    assert harness.scheduler.stats().kv.evictable_blocks == 4, "the loaded blocks are cached"


def test_blocks_of_a_failed_step_are_not_written() -> None:
    tier = RememberingTier(2)
    harness = Harness(Setup(num_blocks=20, token_budget=20, tier=tier, depth=2), request("a", PROMPT, output=4))
    harness.plan(fail=True)
    harness.commit()
    harness.drain()
    assert not tier.held


def test_no_sequence_is_preempted_for_one_that_then_waits_for_a_load() -> None:
    """There is no room for the load before a preemption; the preempted sequence makes room for more than a load."""
    lanes = (LaneSetup("interactive", policy="priority"),)
    harness = Harness(kept(lanes=lanes, transfer_polls=(4,), max_rows=2, max_model_len=64))
    harness.add(request("low", [1, 0] * 17, output=6, priority=9))
    harness.steps(2)
    harness.add(request("high", PROMPT, output=4, priority=0))
    harness.until_preempted()
    assert [one.request.request_id for one in inside.running(harness.scheduler)] == ["high"]


STATES = {"snapshots": 6, "spacing": CheckpointSpacing(interval=100, min_gap=1, tail=1)}
GROUPS: list[tuple[dict[str, Any], list[int]]] = [
    # In a hit of four blocks: all of the first group; of each other what its window shows at position 8; the state.
    ({"windows": (0, 3)}, [0, 0, 0, 0, 1]),
    ({"windows": (0, 4, 100)}, [0, 0, 0, 0, 1, 1, 2, 2, 2, 2]),
    (STATES, [0, 0, 0, 0, 1]),
    ({"windows": (0, 3), **STATES}, [0, 0, 0, 0, 1, 2]),
]


@pytest.mark.parametrize(("shape", "groups"), GROUPS)
def test_a_load_brings_what_each_group_needs(shape: dict[str, Any], groups: list[int]) -> None:
    setup = Setup(num_blocks=60, token_budget=20, tier=RememberingTier(2), **shape)
    first = Harness(setup)
    first.serve(request("first", PROMPT, output=4))
    again = Harness(replace(setup, transfer_polls=(3,)))
    assert again.serve(request("again", PROMPT, output=4)) == [8]
    (load,) = [one for plan in again.plans for one in plan.transfers if one.kind == "load"]
    assert list(load.groups) == groups
    assert again.clients[0].tokens == first.clients[0].tokens
    lost = Harness(replace(setup, transfer_polls=(3,), lost_transfers=1))
    assert lost.serve(request("lost", PROMPT, output=4)) == [0]
    assert lost.clients[0].tokens == first.clients[0].tokens
    assert lost.scheduler.stats().kv.tiers.failed == len(groups)


def kinds(harness: Harness, tier: RememberingTier) -> dict[int, int]:
    """Return the group of each unit that an engine stored, by its number in the tier."""
    stored = [one for plan in harness.plans for one in plan.transfers if one.kind == "store" and one.tier == tier.tier]
    return {number: group for one in stored for (group, _), number in zip(one.units(), one.remote_blocks, strict=True)}


def test_a_prefix_is_as_long_as_every_group_can_be_served() -> None:
    tier = RememberingTier(2)
    setup = Setup(num_blocks=60, token_budget=20, tier=tier, windows=(0, 3))
    first = Harness(setup, request("first", PROMPT, output=1))
    first.drain()
    windows = [number for number, group in kinds(first, tier).items() if group == 1]
    assert len(windows) == 4
    del tier.held[windows[-1]]
    assert Harness(setup).serve(request("again", PROMPT, output=1)) == [6], "the window sees the block before alone"
    setup = replace(setup, tier=tier.copy())
    for number in windows:
        setup.tier.held.pop(number, None)
    assert Harness(setup).serve(request("none", PROMPT, output=1)) == [0]


def test_a_cached_chain_whose_checkpoint_was_evicted_is_completed_from_the_tier() -> None:
    setup = Setup(num_blocks=60, token_budget=20, tier=RememberingTier(2), **{**STATES, "snapshots": 1})
    harness = Harness(setup)
    harness.serve(request("first", PROMPT, output=1))
    harness.serve(request("other", [1, 1, 1, 0, 0, 0, 1], output=1))
    assert harness.serve(request("again", PROMPT, output=1)) == [8]
    (load,) = [one for plan in harness.plans for one in plan.transfers if one.kind == "load"]
    assert load.groups == (1,) and harness.begun == 1


def test_of_an_answer_the_last_checkpoint_is_stored_once_it_has_ended_and_no_marks_are() -> None:
    tier = RememberingTier(2)
    spacing = CheckpointSpacing(interval=4, min_gap=2, tail=1)
    harness = Harness(Setup(num_blocks=60, token_budget=20, tier=tier, snapshots=20, spacing=spacing))
    harness.add(request("a", PROMPT * 2, output=5))
    harness.steps(4)
    written = [position for plan in harness.plans for chunk in plan.chunks for position, _ in chunk.snapshots]
    assert len(written) > 3
    assert [one.position for one in tier.states.values()] == [16], "the prompt's end"
    harness.drain()
    assert sorted(one.position for one in tier.states.values()) == [16, 22]


ROOT, TOKENS = SharedRoot("", None), (7,)


class Writing(OffloadWriter):
    """A writer whose sink wants all blocks; it has begun to write the blocks in `stored`."""

    tier = "shelf"

    def __init__(self) -> None:
        self.cache, self.stored = PrefixCache(1, lambda node: None), []
        transfers = SimpleNamespace(begin=lambda kind, tier, blocks, *more: self.stored.append(blocks))
        super().__init__(SimpleNamespace(num_blocks=64), self.cache, CheckpointSlots(1), transfers, self)

    def root(self, root: SharedRoot) -> bytes:
        return b"root"

    def wants(self, number: int) -> bool:
        return True

    def plan_block(self, block: int) -> CachedBlock:
        """Publish a block and have step 0 compute it; return what is cached of its content."""
        self.begin_step(0)
        node = self.cache.publish(ROOT, TOKENS, block)
        self.add_planned([node], ROOT, TOKENS)
        return self.cache.at_node(node)


def test_a_block_is_written_after_its_step_is_committed() -> None:
    writer = Writing()
    writer.plan_block(5)
    writer.begin_step(1)
    assert not writer.stored
    writer.commit_step(0)
    writer.begin_step(2)
    assert writer.stored == [(5,)]


def test_content_that_another_block_is_loading_is_written_after_that_load() -> None:
    """The loading block is the cached one; a step that computes the same content does not fill it."""
    writer = Writing()
    writer.cache.publish(ROOT, TOKENS, 3)
    writer.cache.at_block(3).loading = 1
    coming = writer.plan_block(5)
    writer.commit_step(0)
    writer.begin_step(1)
    assert coming.block == 3 and not writer.stored, "nothing is in block 3 yet"
    coming.loading = 0
    writer.add_loaded(coming)
    writer.begin_step(2)
    assert writer.stored == [(3,)]


def test_a_block_that_returns_from_the_host_is_written_after_its_load() -> None:
    writer = Writing()
    back = writer.plan_block(5)
    writer.commit_step(0)
    back.loading = 1
    writer.begin_step(1)
    assert not writer.stored and writer.is_waiting
    back.loading = 0
    writer.begin_step(2)
    assert writer.stored == [(5,)] and writer.num_missed == 0


def test_content_that_a_later_step_computes_again_is_written_once_that_is_committed() -> None:
    """The later step may fail, and it writes to another block, and to another slot."""
    writer = Writing()
    block, slots = writer.plan_block(5), writer._slots
    for step, kind in enumerate((CheckpointKind.NEW, CheckpointKind.MARK)):
        slots.drop(block.node)
        slots.publish(slots.take(step, kind), block.node)
        slots.finish_plan()
        writer.postpone(block.node)
        if not step:
            writer.add_checkpoint(block.node)
            writer.commit_step(0)
            writer._in_flight = 8  # as much as may be: nothing is stored with the next plan
            writer.begin_step(1)
    writer.add_planned([block.node], ROOT, TOKENS)
    writer.cache.move(block, 6, None)
    writer._in_flight = 0
    writer.begin_step(2)
    assert not writer.stored and writer.is_waiting
    writer.commit_step(1)
    writer.begin_step(3)
    assert writer.stored == [(6,), (slots.find(block.node),)] and writer.num_missed == 0


@pytest.mark.parametrize("host_blocks", [1, 2])
def test_a_chain_that_a_full_host_evicts_for_its_own_load_is_loaded_whole(host_blocks: int) -> None:
    """The blocks that are loaded need room on the device; what is evicted there needs that of the chain on the host."""
    harness = Harness(replace(kept(), num_blocks=6, host_blocks=host_blocks, host_is_tier=True))
    harness.serve(request("beginning", PROMPT[:5], output=1))
    harness.serve(request("other", (2,) * 11, output=1))
    before = harness.scheduler.stats().kv.tiers.brought
    assert harness.serve(request("again", PROMPT, output=1)) == [8]
    assert harness.scheduler.stats().kv.tiers.brought == before + 4
