"""Swap space and preemption: what is kept on the host, what comes back, and which way is cheaper."""

from __future__ import annotations

import pytest

from inflight.core.estimation.latency import LatencyModel
from inflight.core.scheduling.preemption import Preemption
from inflight.core.types.features import Features

from .. import inspect_scheduler as inside
from ..builders import request
from ..harness import Harness, Setup, outputs_alone

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
    """Two that do not fit together: the later one is preempted, and some of its blocks have gone to the host."""
    harness = Harness(setup)
    harness.add(request("a", [0] * 5, output=6), request("b", [1] * 5, output=6))
    for _ in range(30):
        if inside.host_blocks_in_use(harness.scheduler):
            return harness
        harness.step()
    raise AssertionError("nothing was swapped")


def test_blocks_come_back_as_they_were_and_nothing_is_recomputed_but_what_was_not_full() -> None:
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


def test_one_that_is_aborted_while_swapped_frees_the_host() -> None:
    harness = swapped()
    harness.abort("b")
    assert inside.host_blocks_in_use(harness.scheduler) == 0
    harness.drain()


def test_a_broken_step_empties_the_host() -> None:
    harness = swapped()
    harness.step(fail=True)
    harness.drain()
    assert [client.ended.finishes[0].reason for client in harness.clients] == ["error", "length"]


def test_without_room_on_the_host_the_rest_is_recomputed() -> None:
    harness = Harness(Setup(**{**vars(SCARCE), "host_blocks": 0}))
    harness.add(request("a", [0] * 5, output=6), request("b", [1] * 5, output=6))
    harness.drain()
    timings = harness.clients[1].ended.timings
    assert timings.swapped_blocks == 0 and timings.recomputed_tokens > 0


@pytest.mark.parametrize(("mode", "keeps"), [("recompute", False), ("swap", True)])
def test_as_told(mode: str, keeps: bool) -> None:
    assert Preemption(mode, LatencyModel(), 1e9 if keeps else 0.0).keeps(64, 4) == keeps  # type: ignore[arg-type]


def test_auto_takes_the_cheaper() -> None:
    latency = LatencyModel()
    assert not Preemption("auto", latency, 1e-9).keeps(64, 4)  # nothing is known yet
    for tokens in range(1, 80):
        latency.observe(Features(tokens, 1, 1, 0, 0.0), 0.1 + tokens / 100)
    # 64 tokens take about 0.64 s to compute again, and there are 8 copies.
    assert Preemption("auto", latency, 0.07).keeps(64, 4)
    assert not Preemption("auto", latency, 0.09).keeps(64, 4)
