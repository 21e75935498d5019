"""vLLM's names, beside ours."""

from __future__ import annotations

import pytest
from core.builders import request

from .driven import Driven

TODAY = {
    "num_requests_running", "num_requests_waiting", "num_requests_waiting_by_reason", "kv_cache_usage_perc",
    "cache_config_info", "prefix_cache_queries_total", "prefix_cache_hits_total", "num_preemptions_total",
    "prompt_tokens_total", "prompt_tokens_by_source_total", "prompt_tokens_cached_total", "generation_tokens_total",
    "request_success_total", "request_prompt_tokens_count", "request_generation_tokens_count",
    "iteration_tokens_total_count", "request_max_num_generation_tokens_count", "request_params_n_count",
    "request_params_max_tokens_count", "request_prefill_kv_computed_tokens_count", "time_to_first_token_seconds_count",
    "inter_token_latency_seconds_count", "request_time_per_output_token_seconds_count",
    "e2e_request_latency_seconds_count", "request_queue_time_seconds_count", "request_inference_time_seconds_count",
    "request_prefill_time_seconds_count", "request_decode_time_seconds_count",
}  # fmt: skip
RETIRED = {
    "gpu_cache_usage_perc", "cpu_cache_usage_perc", "num_requests_swapped", "gpu_prefix_cache_queries_total",
    "gpu_prefix_cache_hits_total", "gpu_prefix_cache_hit_rate", "time_per_output_token_seconds_count",
}  # fmt: skip


def test_vllms_names_say_what_ours_say() -> None:
    driven = Driven(names="vllm")
    driven.add(request("a", [0] * 11, output=4), request("b", [1] * 3, output=6, lane="batch"))
    driven.drain()
    driven.add(request("c", [0] * 11, output=9))
    driven.advance()
    page, labels = driven.page(), {"model_name": "tiny", "engine": "0"}
    assert {f"vllm:{name}" for name in TODAY | RETIRED} <= page.names()
    assert page.get("vllm:num_requests_running", **labels) == 1
    usage = page.get("inflight_kv_usage_ratio")
    assert page.get("vllm:kv_cache_usage_perc", **labels) == page.get("vllm:gpu_cache_usage_perc", **labels) == usage
    assert page.get("vllm:prompt_tokens_total", **labels) == 25
    assert page.get("vllm:generation_tokens_total", **labels) == page.total("inflight_output_tokens_total") == 11
    assert page.get("vllm:request_success_total", **labels, finished_reason="length") == 2
    assert page.get("vllm:gpu_prefix_cache_hits_total", **labels) == 8
    hit_rate = page.get("vllm:gpu_prefix_cache_hit_rate", **labels)
    assert hit_rate == pytest.approx(8 / 25)
    for ours, theirs in (
        ("inflight_time_to_first_token_seconds", "vllm:time_to_first_token_seconds"),
        ("inflight_inter_token_latency_seconds", "vllm:inter_token_latency_seconds"),
        ("inflight_inter_token_latency_seconds", "vllm:time_per_output_token_seconds"),
        ("inflight_e2e_latency_seconds", "vllm:e2e_request_latency_seconds"),
    ):
        both = [page.histogram(ours, lane=lane) for lane in ("interactive", "batch")]
        assert page.histogram(theirs, **labels) == pytest.approx(tuple(map(sum, zip(*both, strict=True))))


def test_vllms_buckets_are_theirs() -> None:
    driven = Driven(names="vllm")
    driven.add(request("a", output=3))
    driven.drain()
    page, labels = driven.page(), {"model_name": "tiny", "engine": "0"}
    gap = "vllm:inter_token_latency_seconds_bucket"  # each gap is STEP
    assert [page.get(gap, **labels, le=le) for le in ("0.01", "0.2", "0.3", "80.0", "+Inf")] == [0, 0, 2, 2, 2]
    with pytest.raises(KeyError):
        page.get(gap, **labels, le="0.003")
