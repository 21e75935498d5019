"""The host as a tier of the prefix cache: what nobody wants is kept there, and gives way to what somebody does."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

import pytest

from inflight.core.types.plan import BatchPlan

from .. import inspect_scheduler as inside
from ..builders import request
from ..harness import Harness, Setup
from ..test_state_machine import check_against_alone, check_ledgers

SMALL = Setup(num_blocks=6, token_budget=20, host_blocks=20, host_is_tier=True)
FIRST, OTHER = (0, 1, 1, 0, 1, 0, 0, 1, 1), (1, 1, 0, 0, 0, 1, 1, 1, 0)


def served(harness: Harness, name: str, prompt: tuple[int, ...]) -> int:
    """Cached tokens."""
    harness.add(request(name, prompt, output=2))
    harness.drain()
    client = harness.clients[-1]
    check_against_alone(client, harness.setup)
    assert client.ended is not None
    cached: int = client.ended.timings.cached_tokens
    return cached


def test_what_is_evicted_is_found_on_the_host() -> None:
    harness = Harness(SMALL)
    assert [served(harness, "a", FIRST), served(harness, "b", OTHER)] == [0, 0]
    assert inside.kept_on_host(harness.scheduler) > 0
    assert served(harness, "c", FIRST) == 8
    without = Harness(replace(SMALL, host_is_tier=False))
    assert [served(without, "a", FIRST), served(without, "b", OTHER), served(without, "c", FIRST)][2] < 8
    check_ledgers(harness)


def test_what_was_kept_longest_ago_gives_way() -> None:
    harness = Harness(replace(SMALL, host_blocks=5))
    prompts = [FIRST, OTHER, (0,) * 9, (1, 0) * 4 + (1,)]
    for at, prompt in enumerate(prompts):
        served(harness, f"p{at}", prompt)
    assert inside.host_blocks_in_use(harness.scheduler) == inside.kept_on_host(harness.scheduler) == 5
    assert served(harness, "first", FIRST) < 8 <= served(harness, "last", prompts[-1])


def test_what_a_preempted_sequence_wants_goes_before() -> None:
    harness = Harness(replace(SMALL, num_blocks=8, host_blocks=4, preemption="swap"))
    for at, prompt in enumerate((FIRST, OTHER, (0,) * 9)):
        served(harness, f"p{at}", prompt)
    harness.add(request("a", [0] * 5, output=8), request("b", [1] * 5, output=8))
    harness.until_preempted()
    harness.drain()
    assert any(plan.copies("load") for plan in harness.plans)
    check_ledgers(harness)


@pytest.mark.parametrize("polls", [(0,), (3,)])
def test_beside_the_steps_it_is_stored_before_it_is_taken_and_nobody_waits_for_that(polls: tuple[int, ...]) -> None:
    harness = Harness(replace(SMALL, num_blocks=16, transfer_polls=polls))
    for at in range(6):
        prompt = tuple((at >> bit) & 1 for bit in range(3)) + FIRST
        harness.add(request(f"p{at}", prompt, output=2))
        while harness.alive:
            harness.step()
            assert not inside.is_storing(harness.scheduler)
    harness.drain()
    assert inside.kept_on_host(harness.scheduler) > 0
    for client in harness.clients:
        check_against_alone(client, harness.setup)


@pytest.mark.parametrize("strategy", ["static", "dynamic"])
def test_samples_join_a_batch_together_where_the_first_waits_for_its_blocks(
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
