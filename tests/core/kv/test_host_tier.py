"""The host tier: content of preempted sequences, evicted content where the host is a tier, and the choice to swap."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

import pytest

from inflight.core.estimation.latency import LatencyModel
from inflight.core.scheduling.running import SwapRule
from inflight.core.types.features import Features
from inflight.core.types.plan import BatchPlan

from .. import inspect_scheduler as inside
from ..builders import request
from ..harness import Harness, Setup, outputs_alone
from ..test_state_machine import check_against_alone, check_ledgers

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


def swapped(setup: Setup = SCARCE) -> Harness:
    """Run two requests that do not fit together until a block of the preempted one is on the host."""
    harness = Harness(setup)
    harness.add(request("a", [0] * 5, output=6), request("b", [1] * 5, output=6))
    for _ in range(30):
        if inside.host_blocks_in_use(harness.scheduler):
            return harness
        harness.step()
    raise AssertionError("nothing was swapped")


def test_swapped_blocks_come_back_and_only_partial_blocks_are_recomputed() -> None:
    harness = swapped()
    harness.drain()
    moved = [(plan.copies("store"), plan.copies("load")) for plan in harness.plans if plan.transfers]
    assert sum(len(out) for out, _ in moved) == sum(len(back) for _, back in moved) > 0
    for client in harness.clients:
        assert client.tokens == outputs_alone(client.request, SCARCE.max_model_len)[0]
    timings = harness.clients[1].ended.timings
    assert timings.swapped_blocks == sum(len(back) for _, back in moved)
    assert timings.recomputed_tokens < 2


def test_a_victim_loses_only_what_is_needed() -> None:
    harness = swapped()
    assert inside.host_blocks_in_use(harness.scheduler) == 1  # of its two or three, one block was asked for
    harness.drain()


def test_an_aborted_swapped_request_frees_the_host() -> None:
    harness = swapped()
    harness.abort("b")
    assert inside.host_blocks_in_use(harness.scheduler) == 0
    harness.drain()


def test_a_failed_step_empties_the_host() -> None:
    harness = swapped()
    harness.step(fail=True)
    snapshot = harness.scheduler.stats()
    assert (snapshot.held_host_blocks, snapshot.swapped_sequences) == (0, 0)
    harness.drain()
    assert [client.ended.finishes[0].reason for client in harness.clients] == ["error", "length"]


def test_without_room_on_the_host_the_rest_is_recomputed() -> None:
    harness = Harness(Setup(**{**vars(SCARCE), "host_blocks": 0}))
    harness.add(request("a", [0] * 5, output=6), request("b", [1] * 5, output=6))
    harness.drain()
    timings = harness.clients[1].ended.timings
    assert timings.swapped_blocks == 0 and timings.recomputed_tokens > 0


@pytest.mark.parametrize(("mode", "keeps"), [("recompute", False), ("swap", True)])
def test_a_fixed_mode_does_not_compare_costs(mode: str, keeps: bool) -> None:
    assert SwapRule(mode, LatencyModel(), 1e9 if keeps else 0.0).swaps(64, 4) == keeps  # type: ignore[arg-type]


def test_auto_takes_the_cheaper_way() -> None:
    latency = LatencyModel()
    assert not SwapRule("auto", latency, 1e-9).swaps(64, 4)  # nothing is known yet
    for tokens in range(1, 80):
        latency.observe(Features(tokens, 1, 1, 0, 0.0), 0.1 + tokens / 100)
    # 64 tokens take about 0.64 s to compute again, and there are 8 copies.
    assert SwapRule("auto", latency, 0.07).swaps(64, 4)
    assert not SwapRule("auto", latency, 0.09).swaps(64, 4)


SMALL = Setup(num_blocks=6, token_budget=20, host_blocks=20, host_is_tier=True)
FIRST, OTHER = (0, 1, 1, 0, 1, 0, 0, 1, 1), (1, 1, 0, 0, 0, 1, 1, 1, 0)


def served(harness: Harness, name: str, prompt: tuple[int, ...]) -> int:
    """Serve a request; return its cached tokens."""
    harness.add(request(name, prompt, output=2))
    harness.drain()
    client = harness.clients[-1]
    check_against_alone(client, harness.setup)
    assert client.ended is not None
    cached: int = client.ended.timings.cached_tokens
    return cached


def test_evicted_content_is_found_on_the_host() -> None:
    harness = Harness(SMALL)
    assert [served(harness, "a", FIRST), served(harness, "b", OTHER)] == [0, 0]
    assert inside.evictable_host_blocks(harness.scheduler) > 0
    assert served(harness, "c", FIRST) == 8
    without = Harness(replace(SMALL, host_is_tier=False))
    assert [served(without, "a", FIRST), served(without, "b", OTHER), served(without, "c", FIRST)][2] < 8
    check_ledgers(harness)


def test_the_content_stored_first_is_evicted_first() -> None:
    harness = Harness(replace(SMALL, host_blocks=5))
    prompts = [FIRST, OTHER, (0,) * 9, (1, 0) * 4 + (1,)]
    for at, prompt in enumerate(prompts):
        served(harness, f"p{at}", prompt)
    assert inside.host_blocks_in_use(harness.scheduler) == inside.evictable_host_blocks(harness.scheduler) == 5
    assert served(harness, "first", FIRST) < 8 <= served(harness, "last", prompts[-1])


def test_content_with_waiters_evicts_other_content() -> None:
    harness = Harness(replace(SMALL, num_blocks=8, host_blocks=4, preemption="swap"))
    for at, prompt in enumerate((FIRST, OTHER, (0,) * 9)):
        served(harness, f"p{at}", prompt)
    harness.add(request("a", [0] * 5, output=8), request("b", [1] * 5, output=8))
    harness.until_preempted()
    harness.drain()
    assert any(plan.copies("load") for plan in harness.plans)
    check_ledgers(harness)


@pytest.mark.parametrize("polls", [(0,), (3,)])
def test_asynchronous_stores_ahead_hold_up_no_step(polls: tuple[int, ...]) -> None:
    harness = Harness(replace(SMALL, num_blocks=16, transfer_polls=polls))
    for at in range(6):
        prompt = tuple((at >> bit) & 1 for bit in range(3)) + FIRST
        harness.add(request(f"p{at}", prompt, output=2))
        while harness.alive:
            harness.step()
            assert not inside.is_storing(harness.scheduler)
    harness.drain()
    assert inside.evictable_host_blocks(harness.scheduler) > 0
    for client in harness.clients:
        check_against_alone(client, harness.setup)


@pytest.mark.parametrize("strategy", ["static", "dynamic"])
def test_samples_join_a_batch_together_where_the_first_loads_its_blocks(
    strategy: Literal["static", "dynamic"],
) -> None:
    """The first one finds its blocks on the host, so that its prompt is planned only when they have been loaded."""
    setup = replace(SMALL, num_blocks=14, strategy=strategy, patience=0.0, transfer_polls=(0,))
    harness = Harness(setup)
    for name, prompt in (("p", FIRST), ("q", (1, 0, 0, *OTHER))):
        harness.add(request(name, prompt, output=2))
        harness.drain()
    harness.add(request("a", FIRST, max_tokens=2, output=None, n=2))
    plan = harness.plan()
    assert isinstance(plan, BatchPlan) and plan.copies("load") and not plan.chunks
    assert len(inside.running(harness.scheduler)) == 2
    harness.drain()
    check_against_alone(harness.clients[-1], setup)
