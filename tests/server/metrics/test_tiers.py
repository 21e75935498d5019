"""Counts of blocks that went to tiers and came from them."""

from __future__ import annotations

from dataclasses import replace

from core.builders import request
from core.harness import Setup
from core.tiers import RememberingTier

from inflight.core.types.kv_transfer import FolderStats, KVExportStats
from inflight.server.metrics.gauges import collect_exports, collect_folder

from .driven import Driven

PROMPT = [0, 1, 1, 0, 1, 0, 0, 1, 1]


def kept() -> Setup:
    setup = Setup(num_blocks=20, token_budget=20, tier=RememberingTier(2))
    first = Driven(setup)
    first.add(request("first", PROMPT, output=4))
    first.drain()
    assert first.page().get("inflight_tier_stored_blocks_total", outcome="stored") == 6
    return setup


def test_blocks_that_were_brought_are_counted_under_both_names() -> None:
    driven = Driven(kept(), names="vllm")
    driven.add(request("again", PROMPT, output=4))
    driven.drain()
    page, labels = driven.page(), {"model_name": "tiny", "engine": "0"}
    assert page.get("inflight_tier_fetched_blocks_total", outcome="brought") == 4
    assert page.get("inflight_tier_stored_blocks_total", outcome="stored") == 0, "it is there already"
    assert page.get("vllm:external_prefix_cache_hits_total", **labels) == 8
    assert page.get("vllm:external_prefix_cache_queries_total", **labels) == 8


def test_waits_for_keys_and_values_are_counted_separately() -> None:
    driven = Driven(replace(kept(), transfer_polls=(6,)), names="vllm")
    driven.add(request("again", PROMPT, output=4))
    driven.advance()
    page, labels = driven.page(), {"model_name": "tiny", "engine": "0"}
    assert page.get("inflight_sequences_waiting", lane="interactive", reason="kv") == 1
    assert page.total("inflight_sequences_waiting") == 1
    assert page.get("vllm:num_requests_waiting_by_reason", **labels, reason="deferred") == 1
    driven.drain()


def test_an_engine_without_tiers_has_no_counts_of_them() -> None:
    driven = Driven()
    driven.add(request("a", PROMPT, output=2))
    driven.drain()
    assert not {name for name in driven.page().names() if "tier" in name}


def test_exported_blocks_are_counted_by_outcome() -> None:
    families = {one.name: one.samples for one in collect_exports(KVExportStats(7, 1, 2, 3, 4, 5))}
    assert families["inflight_tier_held_for_peers_blocks"][0].value == 7
    by_outcome = {one.labels["outcome"]: one.value for one in families["inflight_tier_handed_over_blocks"]}
    assert by_outcome == {"taken": 1, "cached": 2, "expired": 3, "displaced": 4, "withdrawn": 5}


def test_what_lies_in_a_folder() -> None:
    families = {one.name: one.samples for one in collect_folder(FolderStats(100, 400, 3, 64, 128, 2, 1, 5))}
    assert families["inflight_tier_folder_bytes"][0].value == 100
    faults = {one.labels["kind"]: one.value for one in families["inflight_tier_faults"]}
    assert faults == {"damaged": 1, "write": 5}
