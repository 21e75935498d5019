"""The KV connector: prefixes are loaded from a tier for waiting sequences, and cached blocks are written to it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from inflight.core.kv.connector import OffloadWriter
from inflight.core.kv.prefix_cache import PrefixCache
from inflight.core.types.kv_blocks import SharedRoot
from inflight.core.types.plan import BatchPlan, WaitForTransfers

from .. import inspect_scheduler as inside
from ..builders import request
from ..harness import Harness, LaneSetup, Setup
from ..remembered import RememberingTier
from ..test_state_machine import check_against_alone, check_ledgers

PROMPT = (0, 1, 1, 0, 1, 0, 0, 1, 1)


def kept(**changes: object) -> Setup:
    """Return the setup of an engine with a tier that has the prompt."""
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


def test_an_engine_begins_behind_blocks_that_another_wrote() -> None:
    harness = Harness(kept())
    harness.add(request("again", PROMPT, output=6))
    finish(harness)
    assert cached(harness) == 8, "the last token is computed, since the next is drawn from it"
    assert harness.scheduler.stats().tiers.brought == 4


def test_blocks_in_the_tier_are_not_written_again() -> None:
    setup = kept()
    harness = Harness(setup)
    harness.add(request("again", PROMPT, output=4))
    harness.drain()
    assert not any(one.kind == "store" for plan in harness.plans for one in plan.transfers)


def test_other_requests_run_while_blocks_are_loaded() -> None:
    harness = Harness(kept(transfer_polls=(4,), max_rows=1))
    harness.add(request("again", PROMPT, output=4))
    plan = harness.plan()
    assert isinstance(plan, BatchPlan) and not plan.chunks and [one.kind for one in plan.transfers] == ["load"]
    assert not inside.running(harness.scheduler), "it waits without a row"
    harness.commit()
    harness.add(request("other", [1, 1, 1], output=3))
    plan = harness.plan()
    assert isinstance(plan, BatchPlan) and plan.chunks, "the next request is computed meanwhile"
    finish(harness)
    assert cached(harness) == 8


def test_an_engine_without_other_work_waits_for_the_load() -> None:
    harness = Harness(kept(transfer_polls=(4,)))
    harness.add(request("again", PROMPT, output=4))
    harness.plan()
    harness.commit()
    assert isinstance(harness.plan(), WaitForTransfers)
    finish(harness)
    timings = harness.clients[0].ended.timings  # type: ignore[union-attr]
    assert timings.queued_by["kv"] == pytest.approx(timings.queue_ms) and timings.queue_ms > 0


def test_blocks_whose_load_failed_are_computed() -> None:
    harness = Harness(kept(transfer_polls=(2,), lost_transfers=1))
    harness.add(request("again", PROMPT, output=6))
    finish(harness)
    assert cached(harness) == 0
    assert harness.scheduler.stats().tiers.failed == 4


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


def test_a_request_aborted_during_its_load_holds_nothing() -> None:
    harness = Harness(kept(transfer_polls=(5,)))
    harness.add(request("again", PROMPT, output=4))
    harness.step()
    harness.abort("again")
    harness.drain()
    assert harness.scheduler.stats().idle_blocks == 4, "the loaded blocks are cached"


def test_blocks_of_a_failed_step_are_not_written() -> None:
    tier = RememberingTier(2)
    harness = Harness(Setup(num_blocks=20, token_budget=20, tier=tier, depth=2))
    harness.add(request("a", PROMPT, output=4))
    harness.plan(fail=True)
    harness.commit()
    harness.drain()
    assert not tier.held


def test_no_sequence_is_preempted_for_one_that_then_waits_for_a_load() -> None:
    """There is no room for the load before a preemption; the preempted sequence makes room for more than a load."""
    lanes = (LaneSetup("interactive", policy="priority"),)
    harness = Harness(kept(lanes=lanes, transfer_polls=(4,), max_rows=2, max_model_len=64))
    harness.add(request("low", [1, 0] * 17, output=6, priority=9))
    harness.step()
    harness.step()
    harness.add(request("high", PROMPT, output=4, priority=0))
    while not harness.scheduler.stats().preemptions:
        harness.step()
    assert [one.request.request_id for one in inside.running(harness.scheduler)] == ["high"]
    finish(harness)


def test_blocks_that_vanish_during_the_load_are_computed() -> None:
    setup = kept(transfer_polls=(2,))
    harness = Harness(setup)
    harness.add(request("again", PROMPT, output=6))
    harness.plan()
    assert setup.tier is not None
    setup.tier.held.clear()
    finish(harness)
    assert cached(harness) == 0


ROOT, TOKENS = SharedRoot("", None), (7,)


class Sink:
    tier = "shelf"

    def name(self, before: bytes | SharedRoot, token_ids: tuple[int, ...]) -> bytes:
        return bytes(token_ids)

    def wants(self, name: bytes) -> bool:
        return True


class Begun:
    def __init__(self) -> None:
        self.stored: list[tuple[int, ...]] = []

    def begin(
        self, kind: str, tier: str, blocks: tuple[int, ...], numbers: tuple[int, ...], ended: Callable[[bool], None]
    ) -> int:
        self.stored.append(blocks)
        return len(self.stored)


@pytest.fixture
def cache() -> PrefixCache:
    return PrefixCache(1, lambda node: None)


@pytest.fixture
def begun() -> Begun:
    return Begun()


@pytest.fixture
def writes(cache: PrefixCache, begun: Begun) -> OffloadWriter:
    pool: Any = SimpleNamespace(num_blocks=64)
    transfers: Any = begun
    return OffloadWriter(pool, cache, transfers, Sink())


def test_a_block_is_written_after_its_step_is_committed(
    writes: OffloadWriter, cache: PrefixCache, begun: Begun
) -> None:
    writes.begin_step(0)
    writes.add_planned(cache.publish(ROOT, TOKENS, 5), ROOT, TOKENS)
    writes.begin_step(1)
    assert not begun.stored
    writes.commit_step(0)
    writes.begin_step(2)
    assert begun.stored == [(5,)]


def test_content_that_another_block_is_loading_is_written_after_that_load(
    writes: OffloadWriter, cache: PrefixCache, begun: Begun
) -> None:
    """The loading block is the cached one; a step that computes the same content does not fill it."""
    node = cache.publish(ROOT, TOKENS, 3)
    coming = cache.at_block(3)
    coming.loading = 1
    writes.begin_step(0)
    assert cache.publish(ROOT, TOKENS, 5) == node
    writes.add_planned(node, ROOT, TOKENS)
    writes.commit_step(0)
    writes.begin_step(1)
    assert not begun.stored, "nothing is in block 3 yet"
    coming.loading = 0
    writes.add_loaded(coming)
    writes.begin_step(2)
    assert begun.stored == [(3,)]


def test_a_block_that_returns_from_the_host_is_written_after_its_load(
    writes: OffloadWriter, cache: PrefixCache, begun: Begun
) -> None:
    writes.begin_step(0)
    node = cache.publish(ROOT, TOKENS, 5)
    writes.add_planned(node, ROOT, TOKENS)
    writes.commit_step(0)
    back = cache.at_block(5)
    back.loading = 1
    writes.begin_step(1)
    assert not begun.stored and writes.is_waiting
    back.loading = 0
    writes.begin_step(2)
    assert begun.stored == [(5,)] and writes.num_missed == 0
