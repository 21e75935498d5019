"""Trace files: detect a file's format by the names in its beginning, and read it with that format's loader."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from inflight.workload.traces import bench_files, csv_traces, hashed, record, sharegpt
from inflight.workload.traces.files import Source, TraceFormat
from inflight.workload.traces.rows import Reading, Rows, Trace
from inflight.workload.workload import WorkloadError

FORMATS = (
    csv_traces.AZURE,
    csv_traces.BURSTGPT,
    hashed.MOONCAKE,
    hashed.BAILIAN,
    sharegpt.FORMAT,
    bench_files.CUSTOM,
    record.FORMAT,
    bench_files.VLLM_RESULT,
)

_DEFAULT_READING = Reading()


def detect(path: Path) -> TraceFormat:
    """Return the format of a file, plain or gzip. Raises WorkloadError with what was looked for, and found."""
    head = Source(path).head()
    for format in FORMATS:
        if format.recognises(head):
            return format
    looked = "; ".join(f"{format.name}: {format.looks_for}" for format in FORMATS)
    raise WorkloadError(f"{path} is of no known trace format. Found: {head.described}. Looked for: {looked}.")


def load(path: Path, format: str | None = None, reading: Reading = _DEFAULT_READING) -> Trace:
    """Read a trace. format: its name; None: as detected. Raises WorkloadError."""
    chosen, rows = _named(format, path), Rows(path)
    with _collector_paused():
        chosen.load(Source(path), rows, reading)
        return rows.finish(chosen.name, chosen.in_order)


@contextmanager
def _collector_paused() -> Iterator[None]:
    """Pause the garbage collector: rows make no cycles, and scanning them each time that they have grown by a quarter
    takes up to a third of the time that reading takes."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _named(format: str | None, path: Path) -> TraceFormat:
    if format is None:
        return detect(path)
    for one in FORMATS:
        if one.name == format:
            return one
    raise WorkloadError(f"Trace format {format!r} is not known; known are {', '.join(one.name for one in FORMATS)}.")
