"""The host tier: content of preempted sequences, evicted content where the host is a tier, and the choice to swap."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from inflight.core.estimation.latency import LatencyModel
from inflight.core.scheduling.running import SwapRule
from inflight.core.types.features import Features

from .. import inspect_scheduler as inside
from ..builders import request
from ..harness import Harness, Setup

SCARCE = Setup(
    num_blocks=6,
    block_size=2,
    max_rows=2,
    token_budget=12,
    prefix_caching=False,
    max_model_len=16,
    preemption="swap",
    host_blocks=8,
)


def pressed(setup: Setup = SCARCE) -> Harness:
    """Start two requests that do not fit together."""
    return Harness(setup, request("a", [0] * 5, output=6), request("b", [1] * 5, output=6))


def swapped() -> Harness:
    """Run two requests that do not fit together until a block of the preempted one is on the host."""
    harness = pressed()
    while not harness.scheduler.stats().kv.used_host_blocks:
        harness.step()
    return harness


def test_swapped_blocks_come_back_and_only_partial_blocks_are_recomputed() -> None:
    harness = swapped()
    assert harness.scheduler.stats().kv.used_host_blocks == 1, "of its two or three, one block was asked for"
    harness.drain()
    moved = [(plan.copies("store"), plan.copies("load")) for plan in harness.plans]
    assert sum(len(out) for out, _ in moved) == sum(len(back) for _, back in moved) > 0
    timings = harness.timings(1)
    assert timings.swapped_blocks == sum(len(back) for _, back in moved) and timings.recomputed_tokens < 2


def test_a_failed_step_empties_the_host() -> None:
    harness = swapped()
    harness.step(fail=True)
    snapshot = harness.scheduler.stats()
    assert (snapshot.kv.used_host_blocks, snapshot.kv.swapped_sequences) == (0, 0)
    harness.drain()
    assert harness.reasons == ["error", "length"]


def test_without_room_on_the_host_the_rest_is_recomputed() -> None:
    harness = pressed(replace(SCARCE, host_blocks=0))
    harness.drain()
    assert harness.timings(1).swapped_blocks == 0 and harness.timings(1).recomputed_tokens > 0


def test_a_fixed_mode_does_not_compare_costs_and_auto_takes_the_cheaper_way() -> None:
    latency = LatencyModel()
    assert not SwapRule("recompute", latency, 0.0).swaps(64, 4) and SwapRule("swap", latency, 1e9).swaps(64, 4)
    assert not SwapRule("auto", latency, 1e-9).swaps(64, 4), "nothing is known yet"
    for tokens in range(1, 80):
        latency.observe(Features(tokens, 1, 1, 0, 0.0), 0.1 + tokens / 100)
    # 64 tokens take about 0.64 s to compute again, and there are 8 copies.
    assert SwapRule("auto", latency, 0.07).swaps(64, 4) and not SwapRule("auto", latency, 0.09).swaps(64, 4)


SMALL = Setup(num_blocks=6, token_budget=20, host_blocks=20, host_is_tier=True)
PROMPTS = (0, 1, 1, 0, 1, 0, 0, 1, 1), (1, 1, 0, 0, 0, 1, 1, 1, 0), (0,) * 9, (1, 0) * 4 + (1,)


def cached(harness: Harness, *prompts: tuple[int, ...]) -> list[int]:
    """Serve prompts one after the other; return the cached tokens of each."""
    return [harness.serve(request(f"p{len(harness.clients)}", prompt, output=2))[0] for prompt in prompts]


def test_evicted_content_is_found_on_the_host() -> None:
    harness = Harness(SMALL)
    assert cached(harness, *PROMPTS[:2]) == [0, 0]
    assert inside.evictable_host_blocks(harness.scheduler) > 0
    assert cached(harness, PROMPTS[0]) == [8]
    assert cached(Harness(replace(SMALL, host_is_tier=False)), *PROMPTS[:2], PROMPTS[0])[2] < 8


@pytest.mark.parametrize("polls", [(), (1,)])
def test_copies_to_the_host_do_not_say_groups_which_older_records_lack(polls: tuple[int, ...]) -> None:
    """All groups' blocks are of one pool, and a record with copies of a model with windows is replayed."""
    harness = Harness(replace(SMALL, windows=(0, 4), transfer_polls=polls, num_blocks=14, host_blocks=99))
    cached(harness, *PROMPTS, PROMPTS[0])
    copies = [one for plan in harness.plans for one in plan.transfers]
    assert copies and not any(one.groups for one in copies)


def test_the_content_stored_first_is_evicted_first() -> None:
    harness = Harness(replace(SMALL, host_blocks=5))
    cached(harness, *PROMPTS)
    assert harness.scheduler.stats().kv.used_host_blocks == inside.evictable_host_blocks(harness.scheduler) == 5
    first, last = cached(harness, PROMPTS[0], PROMPTS[-1])
    assert first < 8 <= last


@pytest.mark.parametrize("polls", [(0,), (3,)])
def test_asynchronous_stores_ahead_hold_up_no_step(polls: tuple[int, ...]) -> None:
    harness = Harness(replace(SMALL, num_blocks=16, transfer_polls=polls))
    for at in range(6):
        harness.add(request(f"p{at}", [(at >> bit) & 1 for bit in range(3)] + [*PROMPTS[0]], output=2))
        while harness.alive:
            harness.step()
            assert not inside.is_storing(harness.scheduler)
    assert inside.evictable_host_blocks(harness.scheduler) > 0


@pytest.mark.parametrize("strategy", ["static", "dynamic"])
def test_samples_join_a_batch_together_where_the_first_loads_its_blocks(strategy: Any) -> None:
    """The first one finds its blocks on the host, so that its prompt is planned only when they have been loaded."""
    harness = Harness(replace(SMALL, num_blocks=14, strategy=strategy, patience=0.0, transfer_polls=(0,)))
    cached(harness, PROMPTS[0], (1, 0, 0, *PROMPTS[1]))
    harness.add(request("a", (*PROMPTS[0], 1), max_tokens=2, output=None, n=2))
    plan = harness.plan()
    assert plan.copies("load") and not plan.chunks
    assert len(inside.running(harness.scheduler)) == 2
