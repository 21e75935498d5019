"""A measured run under the names of `vllm bench serve --save-result --save-detailed`, for programs that read those.

The names are vLLM's and so are their units; the meanings stay `inflight.metrics`' own: latencies count from the
intended send time (vLLM's from the actual one), gaps are between tokens (vLLM's between frames), figures are of the
measured window, and lists of all requests.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from inflight.bench.preparing import Prepared
from inflight.bench.run import Measured
from inflight.metrics.definitions import Percentiles, deviation
from inflight.metrics.observation import Observation


def vllm_record(measured: Measured, prepared: Prepared, rate: float | None, burstiness: float) -> dict[str, Any]:
    """rate: requests/s that were asked for; None: as fast as they were taken."""
    summary, every = measured.summary, measured.observations
    counted = [one for one in every if measured.window.holds(one.intended) and one.outcome == "completed"]
    with_targets = any(one.targets for one in every)
    record: dict[str, Any] = {
        "date": datetime.now(UTC).strftime("%Y%m%d-%H%M%S"),
        "backend": "openai" if prepared.target.endpoint == "completions" else "openai-chat",
        "label": None,
        "model_id": prepared.served.model,
        "tokenizer_id": prepared.served.model,
        "num_prompts": len(every),
        "request_rate": "inf" if rate is None else rate,
        "burstiness": burstiness,
        "max_concurrency": measured.workload.concurrency,
        "duration": summary.wall_seconds,
        "completed": summary.requests,
        "failed": summary.failed + summary.rejected + summary.unfinished,
        "total_input_tokens": summary.prompt_tokens,
        "total_output_tokens": summary.output_tokens,
        "request_throughput": summary.requests_per_s,
        "request_goodput": summary.goodput if with_targets else None,
        "output_throughput": summary.output_tokens_per_s,
        "total_token_throughput": summary.total_tokens_per_s,
    }
    record |= _latencies("ttft", summary.ttft, [value for one in counted if (value := one.ttft) is not None])
    record |= _latencies("tpot", summary.tpot, [value for one in counted if (value := one.tpot) is not None])
    record |= _latencies("itl", summary.itl, [gap for one in counted for gap in one.gaps])
    record |= _latencies("e2el", summary.e2e, [one.e2e for one in counted])
    return record | _lists(every)


def _latencies(name: str, figures: Percentiles, values: Sequence[float]) -> dict[str, float]:
    """Milliseconds; 0 where there are none, as vLLM writes."""
    found = {
        "mean": figures.mean,
        "median": figures.p50,
        "std": deviation(values),
        "p95": figures.p95,
        "p99": figures.p99,
    }
    return {f"{what}_{name}_ms": (value or 0.0) * 1e3 for what, value in found.items()}


def _lists(every: Sequence[Observation]) -> dict[str, Any]:
    """Of every request, in their order; seconds."""
    done = [one.outcome == "completed" for one in every]
    return {
        "input_lens": [one.prompt_tokens for one in every],
        "output_lens": [one.output_tokens if good else 0 for one, good in zip(every, done, strict=True)],
        "ttfts": [one.ttft or 0.0 for one in every],
        "itls": [one.gaps for one in every],
        "start_times": [one.intended if one.sent is None else one.sent for one in every],
        "generated_texts": [""] * len(every),
        "errors": ["" if good else (one.error or one.outcome) for one, good in zip(every, done, strict=True)],
    }
