"""Metrics that routers read of a server: names, types and labels, as endpoint pickers of llm-d and the Gateway API do.

The lists are those of their documents (the metric protocol of llm-d's router, the model server protocol of the Gateway
API's inference extension), under vLLM's names.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
from core.builders import request
from prometheus_client.parser import text_string_to_metric_families

from inflight.core.scheduling.stats import AdapterStats

from .driven import Driven

# name → type, and the labels that are read; a label's value is the number or the list there.
READ: dict[str, tuple[str, frozenset[str]]] = {
    "vllm:num_requests_waiting": ("gauge", frozenset()),
    "vllm:num_requests_running": ("gauge", frozenset()),
    "vllm:kv_cache_usage_perc": ("gauge", frozenset()),
    "vllm:cache_config_info": ("gauge", frozenset({"block_size", "num_gpu_blocks"})),
    "vllm:lora_requests_info": (
        "gauge",
        frozenset({"max_lora", "running_lora_adapters", "waiting_lora_adapters"}),
    ),
    "vllm:prefix_cache_queries": ("counter", frozenset()),
    "vllm:prefix_cache_hits": ("counter", frozenset()),
}


@pytest.fixture
def page() -> str:
    """Return the page of a server that runs one, has one waiting, and has an adapter of two."""
    driven = Driven(names="vllm")
    driven.add(*(request(name, [0] * 11, output=9) for name in "abcdef"))
    driven.advance()
    adapters = AdapterStats(slots=2, held=(("mine", 1), ("idle", 0)), wanted=("yours",), loads=3)
    text, _ = driven.metrics.render(replace(driven.loop.stats(), adapters=adapters))
    return text.decode()


def test_all_are_there_with_their_types_and_labels(page: str) -> None:
    families = {family.name: family for family in text_string_to_metric_families(page)}
    for name, (kind, labels) in READ.items():
        assert families[name].type == kind, name
        assert all(labels <= sample.labels.keys() for sample in families[name].samples), name


def test_their_values_are_what_pickers_take_them_for(page: str) -> None:
    """One series each, since a picker that finds several takes any; counts are counts, shares are shares."""
    series = {sample.name: sample for family in text_string_to_metric_families(page) for sample in family.samples}
    every = [sample for family in text_string_to_metric_families(page) for sample in family.samples]
    for name, (kind, _) in READ.items():
        shown = name + ("_total" if kind == "counter" else "")
        assert [one.name for one in every].count(shown) == 1, shown
    waiting, running = series["vllm:num_requests_waiting"].value, series["vllm:num_requests_running"].value
    assert waiting + running == 6 and waiting > 0 < running
    assert 0 < series["vllm:kv_cache_usage_perc"].value <= 1
    memory = series["vllm:cache_config_info"].labels
    assert (memory["block_size"], memory["num_gpu_blocks"]) == ("4", "40")


def test_adapters_are_lists_and_the_value_is_when_that_was(page: str) -> None:
    (adapters,) = (
        sample
        for family in text_string_to_metric_families(page)
        for sample in family.samples
        if sample.name == "vllm:lora_requests_info"
    )
    assert adapters.labels["max_lora"] == "2" and adapters.value > 1e9
    assert adapters.labels["running_lora_adapters"].split(",") == ["mine"]
    assert adapters.labels["waiting_lora_adapters"].split(",") == ["yours"]
