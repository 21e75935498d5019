"""The same counts under vLLM's names, today's and the retired ones that dashboards still use, with vLLM's labels and
buckets. Nothing is counted here. A counter's `_total` is added by the text format.

Sequences stand for vLLM's requests in the gauges: vLLM makes n requests of one with n samples, too.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

from inflight.core.scheduling.stats import AdapterStats, SchedulerStats
from inflight.core.speculation.speculation import SpeculationStats
from inflight.core.types.plan import Capacity
from inflight.server.metrics.buckets import (
    VLLM_FIRST_TOKEN,
    VLLM_NEXT_TOKEN,
    VLLM_REQUEST,
    VLLM_SAMPLES,
    VLLM_STEP_TOKENS,
    lengths,
)
from inflight.server.metrics.drafts import num_drafts
from inflight.server.metrics.families import F, labelled
from inflight.server.metrics.gauges import host_usage, kv_usage
from inflight.server.metrics.histogram import Histogram
from inflight.server.metrics.lane import FINISH_REASONS, LaneRequests
from inflight.server.metrics.requests import RequestCounts
from inflight.server.metrics.steps import StepCounts

LABELS = ("model_name", "engine")

_TIMES: tuple[tuple[str, str, Sequence[float]], ...] = (
    ("time_to_first_token_seconds", "ttft", VLLM_FIRST_TOKEN),
    ("inter_token_latency_seconds", "itl", VLLM_NEXT_TOKEN),
    ("time_per_output_token_seconds", "itl", VLLM_NEXT_TOKEN),  # retired: what is now the inter-token latency
    ("request_time_per_output_token_seconds", "tpot", VLLM_NEXT_TOKEN),
    ("e2e_request_latency_seconds", "e2e", VLLM_REQUEST),
    ("request_queue_time_seconds", "queue", VLLM_REQUEST),
    ("request_inference_time_seconds", "inference", VLLM_REQUEST),
    ("request_prefill_time_seconds", "prefill", VLLM_REQUEST),
    ("request_decode_time_seconds", "decode", VLLM_REQUEST),
    ("request_params_n", "samples", VLLM_SAMPLES),
)
_SIZES = (
    ("request_prompt_tokens", "prompt"),
    ("request_generation_tokens", "output"),
    ("request_max_num_generation_tokens", "longest"),
    ("request_params_max_tokens", "max_tokens"),
    ("request_prefill_kv_computed_tokens", "computed_prompt"),
)


def collect(
    model_name: str, capacity: Capacity, steps: StepCounts, requests: RequestCounts, snapshot: SchedulerStats | None
) -> Iterator[Metric]:
    page = _Page((model_name, "0"))
    lanes = list(requests.lanes.copy().values()) or [LaneRequests(capacity.max_model_len)]
    if snapshot is not None:
        yield from _gauges(page, snapshot, capacity)
    yield from _counters(page, lanes)
    sizes = lengths(capacity.max_model_len)
    for name, attribute, bounds in (*_TIMES, *((name, attribute, sizes) for name, attribute in _SIZES)):
        total = Histogram.together(getattr(lane, attribute) for lane in lanes)
        yield page.histogram(name, total, bounds)
    yield page.histogram("iteration_tokens_total", steps.tokens, VLLM_STEP_TOKENS)


def _gauges(page: _Page, snapshot: SchedulerStats, capacity: Capacity) -> Iterator[Metric]:
    yield page.gauge("num_requests_running", snapshot.running)
    yield page.gauge("num_requests_waiting", snapshot.waiting + snapshot.compiling)
    apart = {lane.name: lane.loading + lane.fetching for lane in snapshot.lanes}
    held = sum(apart.values())
    held += sum(lane.waiting - apart[lane.name] for lane in snapshot.lanes if lane.stands_for == "window")
    by_reason = {"capacity": snapshot.waiting - held, "deferred": held + snapshot.compiling}
    yield page.by("reason", GaugeMetricFamily, "num_requests_waiting_by_reason", by_reason)
    yield page.gauge("num_requests_swapped", snapshot.swapped_sequences)
    usage = kv_usage(snapshot, capacity)
    yield page.gauge("kv_cache_usage_perc", usage)
    yield page.gauge("gpu_cache_usage_perc", usage)
    yield page.gauge("cpu_cache_usage_perc", host_usage(snapshot, capacity))
    for name in ("prefix_cache", "gpu_prefix_cache"):
        yield page.counter(f"{name}_queries", snapshot.prefix_queries)
        yield page.counter(f"{name}_hits", snapshot.prefix_hits)
    share = snapshot.prefix_hits / snapshot.prefix_queries if snapshot.prefix_queries else 0.0
    yield page.gauge("gpu_prefix_cache_hit_rate", share)
    if snapshot.tiers is not None:
        yield page.counter("external_prefix_cache_queries", snapshot.tiers.asked * capacity.block_size)
        yield page.counter("external_prefix_cache_hits", snapshot.tiers.brought * capacity.block_size)
    yield page.counter("num_preemptions", snapshot.preemptions)
    if snapshot.speculation is not None:
        yield from _speculation(page, snapshot.speculation)
    if snapshot.adapters is not None:
        yield page.adapters(snapshot.adapters)
    yield page.memory(capacity)


def _speculation(page: _Page, stats: SpeculationStats) -> Iterator[Metric]:
    """A draft is what a sequence has in a step, of one token or more."""
    yield page.counter("spec_decode_num_drafts", num_drafts(stats))
    yield page.counter("spec_decode_num_draft_tokens", sum(stats.drafted))
    yield page.counter("spec_decode_num_accepted_tokens", sum(stats.accepted))
    by_place = {str(place): count for place, count in enumerate(stats.accepted or (0,))}
    yield page.by("position", CounterMetricFamily, "spec_decode_num_accepted_tokens_per_pos", by_place)


def _counters(page: _Page, lanes: list[LaneRequests]) -> Iterator[Metric]:
    def total(count: Callable[[LaneRequests], int]) -> int:
        return sum(count(lane) for lane in lanes)

    cached = total(lambda lane: lane.cached_tokens)
    yield page.counter("prompt_tokens", total(lambda lane: lane.prompt_tokens))
    yield page.counter("prompt_tokens_cached", cached)
    by_source = {"local_compute": total(lambda lane: lane.computed_tokens), "local_cache_hit": cached}
    yield page.by("source", CounterMetricFamily, "prompt_tokens_by_source", by_source)
    yield page.counter("generation_tokens", total(lambda lane: lane.output_tokens))
    ends = {reason: sum(lane.finished[reason] for lane in lanes) for reason in FINISH_REASONS}
    yield page.by("finished_reason", CounterMetricFamily, "request_success", ends)


class _Page:
    """Families with the labels that all of vLLM's names have."""

    def __init__(self, labels: tuple[str, str]):
        self._labels = labels

    def gauge(self, name: str, value: float) -> Metric:
        return labelled(GaugeMetricFamily, f"vllm:{name}", _ABOUT, LABELS, {self._labels: value})

    def counter(self, name: str, value: float) -> Metric:
        return labelled(CounterMetricFamily, f"vllm:{name}", _ABOUT, LABELS, {self._labels: value})

    def by(self, label: str, kind: type[F], name: str, values: dict[str, int]) -> F:
        every = {(*self._labels, key): value for key, value in values.items()}
        return labelled(kind, f"vllm:{name}", _ABOUT, (*LABELS, label), every)

    def histogram(self, name: str, histogram: Histogram, bounds: Sequence[float]) -> Metric:
        family = HistogramMetricFamily(f"vllm:{name}", _ABOUT, labels=LABELS)
        family.add_metric(self._labels, histogram.buckets(bounds), histogram.sum())
        return family

    def adapters(self, counts: AdapterStats) -> Metric:
        """Its value is when it was told, in seconds since 1970."""
        told = {
            "max_lora": str(counts.slots),
            "running_lora_adapters": ",".join(name for name, requests in counts.held if requests),
            "waiting_lora_adapters": ",".join(counts.wanted),
        }
        every = {(*self._labels, *told.values()): time.time()}
        return labelled(GaugeMetricFamily, "vllm:lora_requests_info", _ABOUT, (*LABELS, *told), every)

    def memory(self, capacity: Capacity) -> Metric:
        settings = {
            "block_size": capacity.block_size,
            "num_gpu_blocks": capacity.num_blocks,
            "num_cpu_blocks": capacity.host_blocks,
        }
        info = {(*self._labels, *map(str, settings.values())): 1}
        return labelled(GaugeMetricFamily, "vllm:cache_config_info", _ABOUT, (*LABELS, *settings), info)


_ABOUT = "As vLLM's metric of this name; inflight's own has the exact meaning."
