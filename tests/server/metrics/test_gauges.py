"""Gauges and the scheduler's own totals."""

from __future__ import annotations

from dataclasses import replace

import pytest
from core.builders import request
from core.harness import Setup

from inflight.core.kv.checkpoint_spacing import CheckpointSpacing
from inflight.core.types.plan import WaitUntil
from inflight.server.metrics.page import Names

from .driven import ROOMY, STEP, Driven, Page


def test_running_and_waiting_by_lane_and_reason() -> None:
    driven = Driven(Setup(num_blocks=40, block_size=4, max_rows=2, token_budget=8, max_model_len=64))
    driven.add(request("a", output=9), request("b", output=9), request("c", output=9), request("d", lane="batch"))
    driven.advance()
    driven.advance()
    page = driven.page()
    assert page.get("inflight_sequences_running", lane="interactive") == 2
    assert page.get("inflight_sequences_running", lane="batch") == 0
    assert page.get("inflight_sequences_waiting", lane="interactive", reason="rows") == 1
    assert page.get("inflight_sequences_waiting", lane="batch", reason="rows") == 1
    assert page.total("inflight_sequences_waiting") == 2
    assert page.get("inflight_batch_occupancy_ratio") == 1.0
    assert page.get("inflight_rows") == 2
    driven.drain()
    page = driven.page()
    assert page.total("inflight_sequences_running") == page.total("inflight_sequences_waiting") == 0


@pytest.mark.parametrize(
    ("setup", "reason"),
    [
        (Setup(num_blocks=3, block_size=4, max_rows=3, token_budget=20), "blocks"),
        (Setup(num_blocks=40, block_size=4, max_rows=3, token_budget=4), "budget"),
        (Setup(num_blocks=40, block_size=4, max_rows=3, strategy="static", batch_size=2, patience=9.0), "window"),
    ],
)
def test_what_the_queue_stands_still_for(setup: Setup, reason: str) -> None:
    driven = Driven(setup)
    driven.add(request("a", [0] * 8, output=3))
    if reason != "window":
        driven.add(request("b", [1] * 8, output=3))
        driven.advance()
    else:
        assert isinstance(driven.loop.advance(), WaitUntil)
    assert driven.page().get("inflight_sequences_waiting", lane="interactive", reason=reason) == 1


@pytest.mark.parametrize("names", ["inflight", "vllm"])
def test_waits_for_a_grammar_are_counted_separately(names: Names) -> None:
    driven = Driven(Setup(num_blocks=40, block_size=4, max_rows=1, token_budget=8, max_model_len=64), names)
    driven.add(request("a", output=9), request("b", output=9))
    driven.advance()
    driven.advance()
    stats = driven.loop.stats()
    lanes = tuple(replace(lane, compiling=2 * (lane.name == "batch")) for lane in stats.lanes)
    page = driven.page(replace(stats, lanes=lanes))
    assert page.get("inflight_sequences_waiting", lane="batch", reason="grammar") == 2
    assert page.get("inflight_sequences_waiting", lane="interactive", reason="rows") == 1
    assert page.total("inflight_sequences_waiting") == 3
    if names == "vllm":
        labels = {"model_name": "tiny", "engine": "0"}
        assert page.get("vllm:num_requests_waiting", **labels) == 3
        assert page.get("vllm:num_requests_waiting_by_reason", **labels, reason="deferred") == 2


def test_kv_blocks_usage_and_waste() -> None:
    driven = Driven()
    driven.add(request("a", [0] * 5, output=3))
    driven.advance()
    page = driven.page()
    assert page.get("inflight_kv_blocks", state="held") == 2
    assert page.total("inflight_kv_blocks") == 40
    assert page.get("inflight_kv_usage_ratio") == 2 / 40
    assert page.get("inflight_kv_slots", state="allocated") == 8
    assert page.get("inflight_kv_slots", state="used") == 5
    assert page.get("inflight_kv_waste_ratio") == 3 / 8


def test_prefix_cache_in_tokens() -> None:
    driven = Driven()
    for name in ("first", "again"):
        driven.add(request(name, [0] * 11, output=1))
        driven.drain()
    page = driven.page()
    assert page.get("inflight_prefix_cache_query_tokens_total") == 22
    assert page.get("inflight_prefix_cache_hit_tokens_total") == 8
    assert page.get("inflight_cached_prompt_tokens_total", lane="interactive") == 8


def test_snapshots_of_recurrent_state() -> None:
    spacing = CheckpointSpacing(interval=4, min_gap=2, tail=1)
    driven = Driven(Setup(num_blocks=40, token_budget=12, snapshots=5, spacing=spacing))
    for name, last in (("first", 0), ("again", 0), ("other", 1)):
        driven.add(request(name, [0, 1] * 4 + [last] * 3, output=1))
        driven.drain()
    page = driven.page()
    assert page.get("inflight_state_snapshot_hits_total") == 2
    assert page.get("inflight_state_missed_tokens_total") == 0
    assert page.total("inflight_state_snapshots") == 5
    assert page.get("inflight_state_snapshots", state="used") == driven.loop.stats().kv.used_checkpoints > 0
    assert page.get("inflight_prefix_cache_hit_tokens_total") == 10 + 8
    assert Driven().page().total("inflight_state_snapshots") == 0


@pytest.mark.parametrize("kind", ["recompute", "swap"])
def test_preemptions_by_kind_and_what_they_cost(kind: str) -> None:
    driven = Driven(
        Setup(
            num_blocks=6,
            max_rows=2,
            token_budget=12,
            prefix_caching=False,
            max_model_len=16,
            preemption=kind,
            host_blocks=8 if kind == "swap" else 0,
        )
    )
    driven.add(request("a", [0] * 5, output=6), request("b", [1] * 5, output=6))
    max_on_host = max_swapped = 0.0
    while not driven.loop.idle:
        driven.advance()
        page = driven.page()
        max_on_host = max(max_on_host, page.get("inflight_host_blocks", state="held"))
        max_swapped = max(max_swapped, page.get("inflight_sequences_swapped"))
    page = driven.page()
    other = {"recompute": "swap", "swap": "recompute"}[kind]
    preemptions = driven.loop.stats().preemptions
    assert page.get("inflight_preemptions_total", kind=kind) == preemptions > 0
    assert page.get("inflight_preemptions_total", kind=other) == 0
    recomputed = sum(end.timings.recomputed_tokens for end in driven.ends.values())
    assert page.get("inflight_recomputed_tokens_total") == recomputed
    assert recomputed or kind == "swap"
    out = sum(len(plan.copies("store")) for plan in driven.plans)
    assert page.get("inflight_swapped_blocks_total", direction="out") == out
    assert page.get("inflight_swapped_blocks_total", direction="back") == out
    assert bool(out) == bool(max_on_host) == bool(max_swapped) == (kind == "swap")
    assert page.get("inflight_host_blocks", state="held") == page.get("inflight_sequences_swapped") == 0


def test_without_an_engine_the_page_says_so_and_keeps_what_was_counted() -> None:
    driven = Driven()
    driven.add(request("a", output=2))
    driven.drain()
    assert driven.page().get("inflight_engine_up") == 1
    page = Page(driven.metrics.render(None))
    assert page.get("inflight_engine_up") == 0
    assert page.get("inflight_output_tokens_total", lane="interactive") == 2
    assert "inflight_kv_blocks" not in page.names()


def test_suspensions_and_the_seconds_that_steps_rested() -> None:
    driven = Driven(replace(ROOMY, prefill_suspension=1.0))
    driven.add(request("long", [0] * 40, output=1))
    driven.executor.suspend_when(lambda seconds: driven.loop._scheduler.interim.due or seconds >= STEP / 2)
    driven.advance()
    driven.add(request("short", [1] * 3, output=1))
    driven.advance()
    assert driven.page().get("inflight_suspensions_total") == 0, "its step still rests"
    driven.drain()
    page = driven.page()
    assert page.get("inflight_suspensions_total") >= 1
    assert page.get("inflight_suspended_seconds_total") >= STEP, "the interim step took as long"
    assert not any(name.startswith("inflight_susp") for name in Driven().page().names())
