"""A measured run as files: the record (`records.result` has its keys), CSV with a line a request, and the names of
`vllm bench serve --save-result --save-detailed`, for programs that read those.

vLLM's names have vLLM's units, but the meanings stay our
own: latencies count from the intended send time (vLLM's from the actual one), gaps are between tokens (vLLM's between
frames), figures are of the measured window, and lists of all requests.
"""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from inflight import release
from inflight.bench.preparing import Prepared
from inflight.bench.run import Measured
from inflight.metrics.definitions import Percentiles, deviation
from inflight.metrics.observation import Observation
from inflight.metrics.summary import Summary, series
from inflight.records.result import (
    VERSION,
    BenchRecord,
    PercentilesRecord,
    PointRecord,
    RequestRow,
    SeriesRecord,
    SummaryRecord,
    SweepRecord,
    TargetRecord,
)

PROGRAM = f"inflight {release.VERSION}"


@dataclass(frozen=True, slots=True)
class About:
    """The part of a record that is not measured. settings: the options in force. save_requests: whether there is a row
    for each."""

    prepared: Prepared
    settings: Mapping[str, Any]
    save_requests: bool = False


def bench_record(measured: Measured, about: About) -> BenchRecord:
    result, workload = measured.result, measured.workload
    record: BenchRecord = {
        "kind": "bench",
        "version": VERSION,
        "created": created(),
        "program": PROGRAM,
        "valid": measured.valid,
        "faults": list(result.health.faults),
        "partial": measured.partial,
        "settings": dict(about.settings),
        "target": _target(about.prepared),
        "workload": {
            "name": workload.name,
            "requests": len(workload.entries),
            "concurrency": workload.concurrency,
            "closed": workload.closed,
            "notes": list(workload.notes),
        },
        "window": {"start_s": measured.window.start, "end_s": measured.window.end, "part": measured.why},
        "summary": summary_record(measured.summary),
        "by_class": {name: summary_record(one) for name, one in measured.by_class.items()},
        "by_lane": {name: summary_record(one) for name, one in measured.by_lane.items()},
        "by_tenant": {name: summary_record(one) for name, one in measured.by_tenant.items()},
        "health": {
            **{one.name: getattr(result.health, one.name) for one in fields(result.health) if one.name != "faults"},
            "frames": result.frames,
            "token_counts": result.token_counts,
        },
        "notes": [*about.prepared.notes, *measured.notes],
        "series": _series(measured.observations),
    }
    if about.save_requests:
        record["requests"] = [request_row(one) for one in measured.observations]
    return record


def sweep_record(by: str, points: Sequence[PointRecord], partial: bool, **capacity: Any) -> SweepRecord:
    """Return the record of several runs. capacity: the keys of a search for one."""
    record: SweepRecord = {
        "kind": "capacity" if capacity else "sweep",
        "version": VERSION,
        "created": created(),
        "program": PROGRAM,
        "by": by,
        "partial": partial,
        "points": list(points),
    }
    record.update(capacity)  # type: ignore[typeddict-item]
    return record


def created() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def summary_record(summary: Summary) -> SummaryRecord:
    """Return a summary, without latencies where they were still growing and would measure the length of the run."""
    steady = not summary.saturated
    return {
        "offered": summary.offered,
        "completed": summary.requests,
        "rejected": summary.rejected,
        "failed": summary.failed,
        "unfinished": summary.unfinished,
        "window_s": summary.wall_seconds,
        "prompt_tokens": summary.prompt_tokens,
        "cached_tokens": summary.cached_tokens,
        "output_tokens": summary.output_tokens,
        "offered_per_s": summary.offered_per_s,
        "completed_per_s": summary.requests_per_s,
        "input_tokens_per_s": summary.input_tokens_per_s,
        "output_tokens_per_s": summary.output_tokens_per_s,
        "total_tokens_per_s": summary.total_tokens_per_s,
        "goodput_per_s": summary.goodput,
        "attainment": summary.attainment,
        "concurrency": summary.concurrency,
        "concurrency_by_little": summary.concurrency_by_little,
        "saturated_at_per_s": None if steady else summary.requests_per_s,
        "ttft_s": _percentiles(summary.ttft) if steady else None,
        "tpot_s": _percentiles(summary.tpot) if steady else None,
        "itl_s": _percentiles(summary.itl) if steady else None,
        "e2e_s": _percentiles(summary.e2e) if steady else None,
        "delay_s": _percentiles(summary.delay),
        "jct_s": _percentiles(summary.jct),
    }


def request_row(one: Observation) -> RequestRow:
    return {
        "id": one.request_id,
        "intended_s": one.intended,
        "sent_s": one.sent,
        "first_token_s": one.first_token,
        "last_token_s": one.last_token,
        "ended_s": one.ended,
        "outcome": one.outcome,
        "status": one.status,
        "prompt_tokens": one.prompt_tokens,
        "cached_tokens": one.cached_tokens,
        "output_tokens": one.output_tokens,
        "attained": one.attained,
        "traffic": one.traffic,
        "lane": one.lane,
        "tenant": one.tenant,
        "program": one.program,
        "targets_s": asdict(one.targets),
        "error": one.error,
        "token_times_s": [round(time, 6) for time in one.token_times],
    }


def write_csv(path: Path, observations: Sequence[Observation]) -> None:
    """Write a line for each: the keys of RequestRow without its targets and token times, and the latencies."""
    with path.open("w", encoding="utf-8", newline="") as file:
        writer: csv.DictWriter[str] | None = None
        for one in observations:
            row: dict[str, Any] = {**request_row(one)}
            del row["token_times_s"], row["targets_s"]
            row |= {"ttft_s": one.ttft, "tpot_s": one.tpot, "e2e_s": one.e2e, "delay_s": one.delay}
            if writer is None:
                writer = csv.DictWriter(file, list(row))
                writer.writeheader()
            writer.writerow(row)


def _target(prepared: Prepared) -> TargetRecord:
    target, capabilities = prepared.target, prepared.capabilities
    return {
        "url": target.url,
        "endpoint": target.endpoint,
        "model": prepared.served.model,
        "max_model_len": prepared.served.max_model_len,
        "lengths_forced_by": capabilities.forces_length or None,
        "fields": sorted(capabilities.fields),
        "notes": list(prepared.notes),
    }


def _percentiles(figures: Percentiles) -> PercentilesRecord:
    found: Any = {name: list(value) if isinstance(value, tuple) else value for name, value in asdict(figures).items()}
    return found  # type: ignore[no-any-return]


def _series(observations: Sequence[Observation]) -> SeriesRecord:
    found = series(observations)
    return {
        "step_s": found.step,
        "offered": list(found.offered),
        "completed": list(found.completed),
        "output_tokens": list(found.output_tokens),
        "running": [round(value, 4) for value in found.running],
    }


def vllm_record(measured: Measured, prepared: Prepared, rate: float | None, burstiness: float) -> dict[str, Any]:
    """Return the record of `vllm bench serve`. rate: requests/s as set; None: as fast as possible."""
    summary, every = measured.summary, measured.observations
    counted = [one for one in every if measured.window.holds(one.intended) and one.outcome == "completed"]
    with_targets = any(one.targets for one in every)
    record: dict[str, Any] = {
        "date": datetime.now(UTC).strftime("%Y%m%d-%H%M%S"),
        "backend": {"completions": "openai", "chat": "openai-chat"}.get(prepared.target.endpoint, "openai-embeddings"),
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
    """Return milliseconds; 0 where there are none, as vLLM writes."""
    found = {
        "mean": figures.mean,
        "median": figures.p50,
        "std": deviation(values),
        "p95": figures.p95,
        "p99": figures.p99,
    }
    return {f"{what}_{name}_ms": (value or 0.0) * 1e3 for what, value in found.items()}


def _lists(every: Sequence[Observation]) -> dict[str, Any]:
    """Return lists over all requests in order, in seconds."""
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
