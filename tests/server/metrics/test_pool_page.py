"""The page of a server with several models: every family once, every sample of an engine with its model's name."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.parser import text_string_to_metric_families

from inflight.core.types.plan import Capacity
from inflight.server.metrics.page import Metrics
from inflight.server.metrics.pool_page import PoolMetrics, merged
from inflight.server.model_pool.pool_counts import PoolCounts, states
from inflight.server.model_status import ModelStatus

from .test_page import listed_names

CAPACITY = Capacity(num_blocks=4, block_size=16, max_rows=2, max_model_len=64, vocab_size=10)


def engine_page(name: str) -> bytes:
    metrics = Metrics(name, CAPACITY, "vllm", version="1")
    metrics.refused("context_length_exceeded")
    return metrics.render(None)[0]


def test_the_manual_lists_every_name_of_a_pool() -> None:
    metrics, counts = PoolMetrics(version="3"), PoolCounts(["a"])
    metrics.pool = Pool()
    metrics.refused("model_not_found")
    status = ModelStatus("a", "loaded", 5, False, 0, 0, 0.0)
    families = [*states([status], 7), *counts.collect(), metrics._refusals.family()]
    shown = {
        family.name + "_total" * (family.type == "counter"): (
            family.type,
            {label for sample in family.samples for label in sample.labels} - {"le"},
        )
        for family in families
    }
    manual = (Path(__file__).parents[3] / "docs/metrics.md").read_text()
    assert listed_names(manual.partition("\n## Several models\n")[2].partition("\n## ")[0]) == shown


class Pool:
    async def metrics(self) -> Mapping[str, bytes]:
        return {name: engine_page(name) for name in ("a", "b")}

    def collect(self) -> Iterator[Metric]:
        yield GaugeMetricFamily("inflight_models_memory_budget_bytes", "Budget.", 7)


def test_a_page_of_all() -> None:
    metrics = PoolMetrics(version="3")
    metrics.pool = Pool()
    metrics.observe_http("/v1/models", 200, 0.01)
    metrics.refused("model_not_found")
    content, _ = asyncio.run(metrics.page())
    text = content.decode()
    names = re.findall(r"^# TYPE (\S+)", text, re.MULTILINE)
    assert len(names) == len(set(names))
    samples = [one for family in text_string_to_metric_families(text) for one in family.samples]
    by_name = {(one.name, one.labels.get("model_name")): one.value for one in samples}
    assert by_name["inflight_engine_up", "a"] == by_name["inflight_engine_up", "b"] == 0
    assert by_name["inflight_models_memory_budget_bytes", None] == 7
    assert by_name["inflight_calls_refused_total", None] == 1
    assert by_name["inflight_http_requests_total", None] == 1 and ("inflight_http_requests_total", "a") not in by_name
    assert by_name["inflight_build_info", None] == 1
    assert by_name["process_resident_memory_bytes", None] > 0
    assert by_name["inflight_model_process_resident_memory_bytes", "a"] > 0


def test_histograms_and_counters_keep_their_forms() -> None:
    families = {one.name: one for one in merged({"a": engine_page("a"), "b": engine_page("b")}, "model_name")}
    refused = families["inflight_requests_refused"]
    assert refused.type == "counter" and {one.labels["model_name"] for one in refused.samples} == {"a", "b"}
    histogram = next(one for one in families.values() if one.type == "histogram")
    assert all(one.name.startswith(histogram.name) for one in histogram.samples)
