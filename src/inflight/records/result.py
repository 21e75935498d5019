"""The result file: what `inflight bench --output` writes, and reports and comparisons read.

One JSON object. Keys are stable within a version; a reader leaves out the keys that it does not know. Times are seconds
(names end in `_s`), counted from the run's beginning; a request's latencies count from its intended send time. Figures
are made by `inflight.metrics`; this file only knows what they are called.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NotRequired, TypedDict

VERSION = 1
KINDS = ("bench", "sweep", "capacity")


class PercentilesRecord(TypedDict):
    """Seconds. Intervals are 95 %; None where the samples do not reach that far. All None without samples."""

    samples: int
    mean: float | None
    p50: float | None
    p95: float | None
    p99: float | None
    p50_interval: list[float] | None
    p95_interval: list[float] | None
    p99_interval: list[float] | None


class SummaryRecord(TypedDict):
    """Of the requests whose intended send time lies in the window; rates are of what fell into the window."""

    offered: int  # completed + rejected + failed + unfinished
    completed: int
    rejected: int
    failed: int
    unfinished: int
    window_s: float
    prompt_tokens: int  # of the completed ones, as are the two below
    cached_tokens: int
    output_tokens: int
    offered_per_s: float
    completed_per_s: float
    input_tokens_per_s: float
    output_tokens_per_s: float
    total_tokens_per_s: float
    goodput_per_s: float
    attainment: float  # share of the offered
    concurrency: float
    concurrency_by_little: float
    saturated_at_per_s: float | None  # completed requests/s; then the latencies below are None
    ttft_s: PercentilesRecord | None
    tpot_s: PercentilesRecord | None
    itl_s: PercentilesRecord | None
    e2e_s: PercentilesRecord | None
    delay_s: PercentilesRecord  # how late the client sent


class RequestRow(TypedDict):
    """One offered request, with `--save-requests`."""

    id: str
    intended_s: float
    sent_s: float | None
    first_token_s: float | None
    last_token_s: float | None
    ended_s: float
    outcome: str  # completed, rejected, failed, unfinished
    status: int  # of HTTP; 0 where there was none
    prompt_tokens: int
    cached_tokens: int
    output_tokens: int
    attained: bool
    traffic: str
    lane: str
    tenant: str
    # ttft, tpot, itl, itl_max, e2e; None: not promised. itl_share: of the request's own gaps, None: 0.99
    targets_s: dict[str, float | None]
    error: str
    token_times_s: list[float]


class SeriesRecord(TypedDict):
    """What happened in each piece of the run, from its beginning to its last end, warm-up and drain included."""

    step_s: float
    offered: list[int]
    completed: list[int]
    output_tokens: list[int]
    running: list[float]  # requests under way, mean over the piece


class BenchRecord(TypedDict):
    """One measured run."""

    kind: str  # "bench"
    version: int
    created: str  # ISO 8601, UTC
    program: str
    valid: bool  # whether the client kept up
    faults: list[str]  # why not
    partial: bool  # the run was interrupted
    settings: dict[str, Any]  # the options in force
    target: dict[str, Any]  # url, endpoint, model, how lengths are forced, notes
    workload: dict[str, Any]  # name, requests, concurrency, closed, notes, seconds
    window: dict[str, Any]  # start_s, end_s, and why it is the part that was measured
    summary: SummaryRecord
    by_class: dict[str, SummaryRecord]
    by_lane: dict[str, SummaryRecord]
    by_tenant: dict[str, SummaryRecord]
    health: dict[str, Any]  # of the client: processes, lag_p99_s, worst_lag_s, busy, frames, token_counts
    notes: list[str]  # what a reader must know
    series: SeriesRecord
    requests: NotRequired[list[RequestRow]]


class PointRecord(TypedDict):
    """One run of several: at this rate or concurrency."""

    value: float
    met: NotRequired[bool]  # capacity: whether the targets were met
    why: NotRequired[str]
    result: BenchRecord


class SweepRecord(TypedDict):
    """A throughput-latency curve, or the search for a capacity, whose points are its probes in their order."""

    kind: str  # "sweep", "capacity"
    version: int
    created: str
    program: str
    by: str  # "rate" (requests/s) or "concurrency"
    partial: bool
    points: list[PointRecord]
    capacity: NotRequired[float | None]  # highest value that met the targets; None: not even the lowest one tried
    refused: NotRequired[float | None]  # lowest value that did not; None: none was found
    share: NotRequired[float]  # of the offered requests that had to meet their targets


class ResultError(ValueError):
    """A result file cannot be read."""


def read_result(path: Path) -> dict[str, Any]:
    """A BenchRecord or a SweepRecord, by its `kind`; refuses other files and versions."""
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
    except (UnicodeDecodeError, json.JSONDecodeError) as error:
        raise ResultError(f"{path} is no result: not JSON ({error}); give a file of inflight bench --output.") from None
    kind, version = (record.get("kind"), record.get("version")) if isinstance(record, dict) else (None, None)
    if kind not in KINDS or version != VERSION:
        raise ResultError(
            f"{path} has kind {kind!r}, version {version!r}; this program reads {', '.join(KINDS)} of version "
            f"{VERSION}, written by inflight bench --output."
        )
    found: dict[str, Any] = record
    return found


def bench_records(record: dict[str, Any]) -> list[BenchRecord]:
    """The measured runs in a result, whatever its kind."""
    return [point["result"] for point in record["points"]] if "points" in record else [record]  # type: ignore[list-item]
