"""Transform a trace: a window of it, faster or slower, shorter, spread, with other arrivals.

Each function returns another trace whose first arrival is at 0 again, whose links to earlier turns are right, and
whose notes say what was done.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from random import Random

from inflight.workload.arrivals import Arrivals
from inflight.workload.traces.rows import Trace, ordered
from inflight.workload.workload import Entry, WorkloadError


def window(trace: Trace, start_s: float = 0.0, duration_s: float = math.inf) -> Trace:
    """Keep what arrives from start_s on, for duration_s (its end not included)."""
    if not start_s >= 0 or not duration_s > 0:
        raise WorkloadError(
            f"A window from {start_s:g} s for {duration_s:g} s holds nothing; give 0 or more, and above 0."
        )
    kept = [k for k, entry in enumerate(trace.entries) if start_s <= entry.arrival < start_s + duration_s]
    if not kept:
        raise WorkloadError(
            f"Nothing arrives from {start_s:g} s on for {duration_s:g} s; the trace is {trace.span_s:,.1f} s long."
        )
    until = "its end" if math.isinf(duration_s) else f"{start_s + duration_s:,.1f} s"
    note = f"Of the trace, {start_s:,.1f} s to {until}: {len(kept):,} of {len(trace.entries):,} requests."
    return _changed(trace, _kept(trace.entries, kept), note)


def limit(trace: Trace, requests: int) -> Trace:
    """Keep the first so many requests."""
    if requests < 1:
        raise WorkloadError(f"The trace is to have {requests} requests; give a number from 1.")
    if requests >= len(trace.entries):
        return trace
    note = f"The first {requests:,} of {len(trace.entries):,} requests."
    return _changed(trace, _kept(trace.entries, range(requests)), note)


def speed(trace: Trace, factor: float) -> Trace:
    """Play a trace so many times as fast; 2 halves all times between arrivals. Times to think stay as they are."""
    if not 0 < factor < math.inf:
        raise WorkloadError(f"The speed of a trace is {factor:g}; give a number above 0, 1 for its own.")
    if factor == 1:
        return trace
    faster = [_at(entry, entry.arrival / factor) for entry in trace.entries]
    return replace(
        _changed(trace, faster, f"Arrivals at {factor:g} times the trace's speed."), bucket_s=trace.bucket_s / factor
    )


def spread(trace: Trace, bucket_s: float | None = None, seed: int = 0) -> Trace:
    """Move each arrival to a random time within its bucket. bucket_s None: the raster that was found in the trace."""
    bucket = trace.bucket_s if bucket_s is None else bucket_s
    if not 0 <= bucket < math.inf:
        raise WorkloadError(f"A bucket of times is {bucket:g} s long; give seconds above 0.")
    if not bucket:
        return trace
    rng = Random(f"{seed}/spread")
    moved = [_at(entry, (math.floor(entry.arrival / bucket + 1e-9) + rng.random()) * bucket) for entry in trace.entries]
    note = f"Arrivals spread at random within buckets of {bucket:g} s (seed {seed}); the trace does not say more."
    return replace(_changed(trace, moved, note), bucket_s=0.0)


def retimed(trace: Trace, arrivals: Arrivals, seed: int = 0) -> Trace:
    """Keep the requests in their order, at other times. Later turns still wait for the answers before them."""
    times = arrivals.times(Random(f"{seed}/arrivals"))
    starts: list[float] = []
    for entry in trace.entries:
        starts.append(next(times) if entry.after is None else starts[entry.after])
    entries = [_at(entry, start) for entry, start in zip(trace.entries, starts, strict=True)]
    return replace(_changed(trace, entries, f"Arrivals {arrivals} (seed {seed}) instead of the trace's."), bucket_s=0.0)


def _changed(trace: Trace, entries: list[Entry], *notes: str) -> Trace:
    ordered(entries)
    return replace(trace, entries=tuple(entries), notes=(*trace.notes, *notes))


def _kept(entries: Sequence[Entry], indexes: Iterable[int]) -> list[Entry]:
    """Return these entries; a turn whose predecessor is not among them waits for none."""
    indexes = list(indexes)
    if all(entries[index].after is None for index in indexes):
        return [entries[index] for index in indexes]
    new_index = {old: new for new, old in enumerate(indexes)}
    return [
        entry if entry.after is None else entry.moved(entry.arrival, new_index.get(entry.after))
        for entry in map(entries.__getitem__, indexes)
    ]


def _at(entry: Entry, arrival: float) -> Entry:
    return entry.moved(arrival, entry.after)
