"""The page as a whole: names, kinds, labels, buckets."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
from core.builders import request
from msgspec import structs

from inflight.core.scheduling.stats import AdapterStats
from inflight.core.speculation.speculation import SpeculationStats
from inflight.core.types.kv_transfer import FolderStats, KVExportStats, TierStats
from inflight.core.types.suspension import SuspensionStats
from inflight.execution.grammars.compiled_grammars import GrammarTally
from inflight.server.metrics.page import Metrics, Names

from .driven import ROOMY, Driven, Page


@pytest.mark.parametrize("names", ["inflight", "vllm"])
def test_each_name_stands_once_has_a_prefix_and_says_what_it_is(names: Names) -> None:
    page = Driven(names=names).page()
    assert page.content_type.startswith("text/plain; version=0.0.4")
    found = [family.name for family in page.families]
    assert len(found) == len(set(found))
    assert all(name.startswith(("inflight_", "process_", "vllm:")) for name in found)
    assert any(name.startswith("vllm:") for name in found) == (names == "vllm")
    assert all(family.documentation for family in page.families)
    assert not any(name.endswith("_created") for name in page.names())


def listed_names(manual: str) -> dict[str, tuple[str, set[str]]]:
    rows = re.findall(r"^\| `(inflight_\w+)` \| (\w+) \| ([\w, ]*)\|", manual, re.MULTILINE)
    return {name: (kind, set(labels.replace(",", " ").split())) for name, kind, labels in rows}


def test_the_manual_lists_every_name_with_its_kind_and_labels() -> None:
    driven = Driven()
    driven.add(request("a", output=1))
    driven.drain()
    driven.metrics.observe_http("/health", 200, 0.1)
    stats = driven.loop.stats()
    snapshot = replace(
        stats,
        kv=structs.replace(stats.kv, tiers=TierStats()),
        speculation=SpeculationStats("suffix"),
        grammars=GrammarTally().stats(),
        adapters=AdapterStats(2, (("sql", 1),), (), 1),
        folder=FolderStats(0, 0, 0, 0, 0, 0, 0, 0),
        kv_exports=KVExportStats(),
        suspended=SuspensionStats(),
    )
    manual = (Path(__file__).parents[3] / "docs/metrics.md").read_text()
    of_several = re.compile(r"^## (Several models|Replicas)\n.*?(?=^## )", re.MULTILINE | re.DOTALL)
    listed = listed_names(of_several.sub("", manual))
    shown = {
        family.name + "_total" * (family.type == "counter"): (
            family.type,
            {label for sample in family.samples for label in sample.labels} - {"le"},
        )
        for family in Page(driven.metrics.render(snapshot)).families
        if family.name.startswith("inflight_")
    }
    assert listed == shown


def test_two_servers_in_one_process_count_separately() -> None:
    one, other = Driven(), Driven()
    one.add(request("a", output=2))
    one.drain()
    assert one.page().total("inflight_output_tokens_total") == 2
    assert other.page().total("inflight_output_tokens_total") == 0


def test_a_model_name_with_quotes_does_not_break_the_page() -> None:
    metrics = Metrics('a"b\\c\nd', ROOMY.capacity, "vllm", version="1.2.3")
    (build,) = [one for one in Page(metrics.render(None)).families if one.name == "inflight_build_info"]
    assert build.samples[0].labels["model_name"] == 'a"b\\c\nd'


def test_buckets_from_a_millisecond_and_up_to_the_models_length() -> None:
    page = Driven().page()
    bounds = {
        name: [
            float(sample.labels["le"])
            for family in page.families
            for sample in family.samples
            if sample.name == f"{name}_bucket" and sample.labels.get("lane", "batch") == "batch"
        ]
        for name in ("inflight_time_to_first_token_seconds", "inflight_request_prompt_tokens")
    }
    assert bounds["inflight_time_to_first_token_seconds"][0] == 0.001
    assert bounds["inflight_request_prompt_tokens"] == [1, 2, 5, 10, 20, 50, float("inf")]
