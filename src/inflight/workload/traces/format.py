"""How a trace format registers: a name, what it is known by, and its loader."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from inflight.workload.traces.rows import Reading, Rows
from inflight.workload.traces.source import Head, Source
from inflight.workload.traces.trace import Trace


@dataclass(frozen=True, slots=True)
class TraceFormat:
    """looks_for: what `recognises` looks for in a file's beginning. load: fills the rows and finishes them."""

    name: str
    looks_for: str
    recognises: Callable[[Head], bool]
    load: Callable[[Source, Rows, Reading], Trace]
