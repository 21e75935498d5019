"""Find the highest load that meets the targets: double it until they are missed, then bisect on a logarithmic scale."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

from inflight.bench.client_types import BenchError
from inflight.bench.run import Measured

SHARE = 0.99  # of the offered requests that must meet all of their targets
PRECISION = 0.05  # the search ends when the bounds are that close, relative to each other
MAX_PROBES = 24
SHARE_OF_CLOSED = 0.7  # of a closed loop's throughput, at which targets on latency are usually about to be missed
_FURTHEST = 4096.0  # times below or above the first value


@dataclass(frozen=True, slots=True)
class Probe:
    """value: requests/s, or concurrency. why: the reason of the verdict, with its figure."""

    value: float
    measured: Measured
    met: bool
    why: str


@dataclass(slots=True)
class Capacity:
    """met: highest value that met the targets. missed: lowest that did not. None: no such value was found. ended: why
    the search ended, where that was before the two were close."""

    share: float
    probes: list[Probe] = field(default_factory=list)
    met: float | None = None
    missed: float | None = None
    ended: str = ""


def judge(measured: Measured, share: float) -> tuple[bool, str]:
    """Return whether the offered requests in the window met the targets, and why (not)."""
    summary = measured.summary
    if not summary.requests:
        return False, "nothing was completed"
    if summary.saturated:
        return False, f"saturated at {summary.requests_per_s:,.2f} requests/s: latency was still growing"
    why = f"{summary.attainment:.1%} of {summary.offered:,} requests met their targets"
    return summary.attainment >= share, why


def find_capacity(
    run: Callable[[float], Measured],
    start: float,
    *,
    share: float = SHARE,
    whole: bool = False,
    precision: float = PRECISION,
    begin: Callable[[float, int | None], None] = lambda value, left: None,
    report: Callable[[Probe], None] = lambda probe: None,
) -> Capacity:
    """Search the capacity from `start`.

    It ends early, with the reason, where the client could not keep up twice, or was interrupted. One run decides at
    each value: near the capacity chance decides, so that a repeated search ends a few percent elsewhere.

    Args:
        run: Measures one value.
        start: The first value.
        share: Of the offered requests that must meet all of their targets.
        whole: Whether values are whole numbers (concurrency).
        precision: The search ends when the bounds are that close, relative to each other.
        begin: Called before every probe with its value and the number of probes after it; None: not known.
        report: Called after every probe.
    """
    if not 0 < start < math.inf:
        raise BenchError(f"The search for the capacity begins at {start:g}; give a number above 0.")
    found = Capacity(share)
    value: float | None = max(1, round(start)) if whole else start
    while value is not None and len(found.probes) < MAX_PROBES:
        begin(value, probes_after(found, precision))
        measured = run(value)
        if not measured.valid and not measured.partial:
            measured = run(value)  # once more: a machine may be busy for a moment
        if measured.partial or not measured.valid:
            found.ended = "interrupted" if measured.partial else f"at {value:g}: {measured.result.health.faults[0]}"
            break
        met, why = judge(measured, share)
        found.probes.append(Probe(value, measured, met, why))
        report(found.probes[-1])
        if met:
            found.met = value if found.met is None else max(found.met, value)
        else:
            found.missed = value if found.missed is None else min(found.missed, value)
        value = _next(found, start, whole, precision)
    return found


def probes_after(found: Capacity, precision: float = PRECISION) -> int | None:
    """Return how many probes follow the next one, at most: each halves the interval on a logarithmic scale. None while
    the capacity has a bound on one side only."""
    if found.met is None or found.missed is None or found.missed <= found.met:
        return None
    between = math.log(found.missed / found.met) / math.log1p(precision)
    return max(0, math.ceil(math.log2(max(1.0, between))) - 1)


def starting_rate(measured: Measured) -> float | None:
    """Return where a search may begin, near the capacity, by the throughput of a closed loop: doubling from one request
    a second takes a probe for each factor of two. None where the run has no valid figure."""
    rate = measured.summary.requests_per_s
    return SHARE_OF_CLOSED * rate if measured.believed and not measured.partial and rate > 0 else None


def _next(found: Capacity, start: float, whole: bool, precision: float) -> float | None:
    met, missed = found.met, found.missed
    if missed is None:
        assert met is not None
        return met * 2 if met * 2 <= start * _FURTHEST else None
    if met is None:
        lower = missed / 2
        if whole:
            return float(math.floor(lower)) if missed > 1 else None
        return lower if lower >= start / _FURTHEST else None
    if missed <= met or missed / met <= 1 + precision:
        return None
    middle = math.sqrt(met * missed)
    if not whole:
        return middle
    between = round(middle)
    return float(between) if met < between < missed else None
