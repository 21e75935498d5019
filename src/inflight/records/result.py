"""The result file, which `inflight bench --output` writes, and reports and comparisons read.

One JSON object. Keys are stable within a version; a reader leaves out the keys that it does not know. Times are seconds
(names end in `_s`), counted from the run's beginning; a request's latencies count from its intended send time. Figures
are made by `inflight.metrics`; this file only knows what they are called.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal, NotRequired, TypedDict

import msgspec

from inflight.counted import Count, Seconds, Time
from inflight.records.checked import Malformed, converted, decoded

VERSION = 1
KINDS = ("bench", "sweep", "capacity")


class PercentilesRecord(TypedDict):
    """Seconds. Intervals are 95 %; None where the samples do not reach that far. All None without samples."""

    samples: Count
    mean: Time | None
    p50: Time | None
    p95: Time | None
    p99: Time | None
    p50_interval: list[Time] | None
    p95_interval: list[Time] | None
    p99_interval: list[Time] | None


class SummaryRecord(TypedDict):
    """Figures of requests whose intended send time lies in the window; rates are of events in the window."""

    offered: Count  # completed + rejected + failed + unfinished
    completed: Count
    rejected: Count
    failed: Count
    unfinished: Count
    window_s: Seconds
    prompt_tokens: Count  # of the completed ones, as are the two below
    cached_tokens: Count
    output_tokens: Count
    offered_per_s: Seconds
    completed_per_s: Seconds
    input_tokens_per_s: Seconds
    output_tokens_per_s: Seconds
    total_tokens_per_s: Seconds
    goodput_per_s: Seconds
    attainment: Seconds  # share of the offered
    concurrency: Seconds
    concurrency_by_little: Seconds
    saturated_at_per_s: Seconds | None  # completed requests/s; then the latencies below are None
    ttft_s: PercentilesRecord | None
    tpot_s: PercentilesRecord | None
    itl_s: PercentilesRecord | None
    e2e_s: PercentilesRecord | None
    delay_s: PercentilesRecord  # how late the client sent
    jct_s: NotRequired[PercentilesRecord]  # of programs; earlier files lack it


class RequestRow(TypedDict):
    """One offered request, with `--save-requests`."""

    id: str
    intended_s: Time
    sent_s: Time | None
    first_token_s: Time | None
    last_token_s: Time | None
    ended_s: Time
    outcome: Literal["completed", "rejected", "failed", "unfinished"]
    program: NotRequired[str]
    status: Count  # of HTTP; 0 where there was none
    prompt_tokens: Count
    cached_tokens: Count
    output_tokens: Count
    attained: bool
    traffic: str
    lane: str
    tenant: str
    # ttft, tpot, itl, itl_max, e2e; None: no target. itl_share: of the request's own gaps, None: 0.99
    targets_s: dict[str, float | None]
    error: str
    token_times_s: list[Time]


class SeriesRecord(TypedDict):
    """Counts by interval of the run, from its beginning to its last end, warm-up and drain included."""

    step_s: Seconds
    offered: list[Count]
    completed: list[Count]
    output_tokens: list[Count]
    running: list[Seconds]  # requests in flight, mean over the piece


class WindowRecord(TypedDict):
    start_s: Time
    end_s: Time
    part: NotRequired[str]  # why it is the part that was measured


class WorkloadRecord(TypedDict):
    name: str
    notes: list[str]
    requests: NotRequired[Count]
    concurrency: NotRequired[Count | None]
    closed: NotRequired[bool]


class TargetRecord(TypedDict, total=False):
    """The server that was asked. lengths_forced_by: the field that does; None: nothing. fields: that it understands."""

    url: str
    endpoint: str
    model: str
    max_model_len: Count | None
    lengths_forced_by: str | None
    fields: list[str]
    notes: list[str]


class BenchRecord(TypedDict):
    """One measured run."""

    kind: Literal["bench"]
    version: int
    created: NotRequired[str]  # ISO 8601, UTC
    program: NotRequired[str]
    valid: bool  # whether the client kept up
    faults: list[str]  # why not
    partial: bool  # the run was interrupted
    settings: dict[str, Any]  # the options in force
    target: TargetRecord
    workload: WorkloadRecord
    window: WindowRecord
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

    value: Seconds
    met: NotRequired[bool]  # capacity: whether the targets were met
    why: NotRequired[str]
    result: BenchRecord


class SweepRecord(TypedDict):
    """A throughput-latency curve, or the search for a capacity, whose points are its probes in their order."""

    kind: Literal["sweep", "capacity"]
    version: int
    created: NotRequired[str]
    program: NotRequired[str]
    by: str  # "rate" (requests/s) or "concurrency"
    partial: bool
    points: list[PointRecord]
    capacity: NotRequired[Seconds | None]  # highest value that met the targets; None: not even the lowest one tried
    refused: NotRequired[Seconds | None]  # lowest value that did not; None: none was found
    share: NotRequired[Seconds]  # of the offered requests that had to meet their targets


class ResultError(ValueError):
    """A result file cannot be read."""


_ANY = msgspec.json.Decoder()


def read_result(path: Path) -> BenchRecord | SweepRecord:
    """Return the record of a file, by its `kind`. Raises ResultError for another file, version or type."""
    try:
        record = decoded(_ANY, path.read_bytes())
    except Malformed as fault:
        raise ResultError(f"{path} is no result: {fault.cause}; give a file of inflight bench --output.") from None
    kind, version = (record.get("kind"), record.get("version")) if isinstance(record, dict) else (None, None)
    if kind not in KINDS or version != VERSION:
        raise ResultError(
            f"{path} has kind {kind!r}, version {version!r}; this program reads {', '.join(KINDS)} of version "
            f"{VERSION}, written by inflight bench --output."
        )
    try:
        if kind == "bench":
            return converted(record, BenchRecord)
        return converted(record, SweepRecord)
    except Malformed as fault:
        raise ResultError(f"{path} {fault.cause}; measure again.") from None
