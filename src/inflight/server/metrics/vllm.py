"""The same counts under vLLM's names, current and retired, with vLLM's labels and buckets.

The text format adds `_total` to counters. Sequences stand for vLLM's requests in the gauges: vLLM makes n requests of
one with n samples, too.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

from inflight.core.scheduling.stats import AdapterStats, SchedulerStats
from inflight.core.speculation.speculation import SpeculationStats
from inflight.core.types.plan import Capacity
from inflight.server.metrics.families import F, labelled
from inflight.server.metrics.gauges import host_usage, kv_usage, num_drafts
from inflight.server.metrics.histogram import (
    VLLM_FIRST_TOKEN,
    VLLM_NEXT_TOKEN,
    VLLM_REQUEST,
    VLLM_SAMPLES,
    VLLM_STEP_TOKENS,
    Histogram,
    lengths,
)
from inflight.server.metrics.requests import FINISH_REASONS, LaneRequests, RequestCounts
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
    model_name: str, capacity: Capacity, steps: StepCounts, requests: RequestCounts, stats: SchedulerStats | None
) -> Iterator[Metric]:
    page = _Page((model_name, "0"))
    lanes = list(requests.lanes.copy().values()) or [LaneRequests(capacity.max_model_len)]
    if stats is not None:
        yield from _gauges(page, stats, capacity)
    yield from _counters(page, lanes)
    sizes = lengths(capacity.max_model_len)
    for name, attribute, bounds in (*_TIMES, *((name, attribute, sizes) for name, attribute in _SIZES)):
        total = Histogram.together(getattr(lane, attribute) for lane in lanes)
        yield page.histogram(name, total, bounds)
    yield page.histogram("iteration_tokens_total", steps.tokens, VLLM_STEP_TOKENS)


def _gauges(page: _Page, stats: SchedulerStats, capacity: Capacity) -> Iterator[Metric]:
    yield page.gauge("num_requests_running", stats.running)
    yield page.gauge("num_requests_waiting", stats.waiting + stats.compiling)
    fetching = {lane.name: lane.loading + lane.fetching for lane in stats.lanes}
    deferred = sum(fetching.values())
    deferred += sum(lane.waiting - fetching[lane.name] for lane in stats.lanes if lane.blocked_on == "window")
    by_reason = {"capacity": stats.waiting - deferred, "deferred": deferred + stats.compiling}
    yield page.by("reason", GaugeMetricFamily, "num_requests_waiting_by_reason", by_reason)
    yield page.gauge("num_requests_swapped", stats.kv.swapped_sequences)
    usage = kv_usage(stats, capacity)
    yield page.gauge("kv_cache_usage_perc", usage)
    yield page.gauge("gpu_cache_usage_perc", usage)
    yield page.gauge("cpu_cache_usage_perc", host_usage(stats, capacity))
    for name in ("prefix_cache", "gpu_prefix_cache"):
        yield page.counter(f"{name}_queries", stats.prefix_queries)
        yield page.counter(f"{name}_hits", stats.prefix_hits)
    share = stats.prefix_hits / stats.prefix_queries if stats.prefix_queries else 0.0
    yield page.gauge("gpu_prefix_cache_hit_rate", share)
    if stats.kv.tiers is not None:
        yield page.counter("external_prefix_cache_queries", stats.kv.tiers.asked * capacity.block_size)
        yield page.counter("external_prefix_cache_hits", stats.kv.tiers.brought * capacity.block_size)
    yield page.counter("num_preemptions", stats.preemptions)
    if stats.speculation is not None:
        yield from _speculation(page, stats.speculation)
    if stats.adapters is not None:
        yield page.adapters(stats.adapters)
    yield page.memory(capacity)


def _speculation(page: _Page, stats: SpeculationStats) -> Iterator[Metric]:
    """Yield counts of drafts: one draft is all tokens that are drafted for a sequence in a step."""
    yield page.counter("spec_decode_num_drafts", num_drafts(stats))
    yield page.counter("spec_decode_num_draft_tokens", sum(stats.drafted))
    yield page.counter("spec_decode_num_accepted_tokens", sum(stats.accepted))
    by_position = {str(position): count for position, count in enumerate(stats.accepted or (0,))}
    yield page.by("position", CounterMetricFamily, "spec_decode_num_accepted_tokens_per_pos", by_position)


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
        """Return the adapters in memory. The value is the time of the page, in seconds since 1970."""
        adapters = {
            "max_lora": str(counts.slots),
            "running_lora_adapters": ",".join(name for name, requests in counts.held if requests),
            "waiting_lora_adapters": ",".join(counts.wanted),
        }
        every = {(*self._labels, *adapters.values()): time.time()}
        return labelled(GaugeMetricFamily, "vllm:lora_requests_info", _ABOUT, (*LABELS, *adapters), every)

    def memory(self, capacity: Capacity) -> Metric:
        settings = {
            "block_size": capacity.block_size,
            "num_gpu_blocks": capacity.num_blocks,
            "num_cpu_blocks": capacity.host_blocks,
        }
        info = {(*self._labels, *map(str, settings.values())): 1}
        return labelled(GaugeMetricFamily, "vllm:cache_config_info", _ABOUT, (*LABELS, *settings), info)


_ABOUT = "As vLLM's metric of this name; inflight's own has the exact meaning."
