"""Print measured runs on standard error: throughput and latency, a line for each load, and a search's probes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from inflight.bench.capacity import Capacity, Probe
from inflight.bench.offering import Load
from inflight.bench.run import Measured, Point
from inflight.cli.progress import duration
from inflight.cli.summary import HEAD, figure, in_ms, milliseconds, show, throughput
from inflight.counted import counted
from inflight.metrics.definitions import Percentiles
from inflight.metrics.observation import Targets
from inflight.metrics.summary import Summary

_PAIRS = f"{'TTFT p50':>10} {'p99':>10} {'TPOT p50':>10} {'p99':>10}"
_WHOLE = f"{'E2E p50':>10} {'p99':>10}"  # of answers without tokens


def print_measured(measured: Measured, notes: tuple[str, ...]) -> None:
    """Print one run. notes: that are printed before its own."""
    summary = measured.summary
    if measured.workload.name:
        show(measured.workload.name)
    show(f"{_ends(summary)} in {summary.wall_seconds:,.2f} s, measured {measured.why}")
    if measured.partial:
        show("interrupted: the figures are of the part that was measured until then")
    output = f"{summary.output_tokens_per_s:,.1f} output tokens/s   " if summary.ttft.samples else ""
    figure("throughput", throughput(summary, output))
    if targets := _shared_targets(one.targets for one in measured.observations):
        figure("goodput", f"{summary.goodput:,.2f} requests/s: {summary.attainment:.1%} of the offered met {targets}")
    figure(
        "in flight",
        f"{summary.concurrency:,.1f} requests on average (by Little's law {summary.concurrency_by_little:,.1f}); "
        f"{summary.offered_per_s:,.2f} offered/s",
    )
    _print_latencies(summary)
    for kind, groups in (("class", measured.by_class), ("lane", measured.by_lane), ("tenant", measured.by_tenant)):
        if len(groups) > 1:
            _print_groups(kind, groups)
    print_notes((*notes, *measured.notes))
    _print_faults(measured)


def print_notes(notes: Sequence[str]) -> None:
    for note in notes:
        figure("note", note)


def print_header(by: str, answers: bool) -> None:
    """Print the names of the columns of `print_point`. answers: whether the server answers with tokens."""
    tokens, latencies = ("output tok/s", _PAIRS) if answers else ("input tok/s", _WHOLE)
    show(f"{'requests/s' if by == 'rate' else by:>12} {'completed/s':>12} {tokens:>13} {latencies}  ms")


def print_point(point: Point, answers: bool) -> None:
    """Print a run of a sweep."""
    show(_line(point.value, point.measured, answers))
    _print_faults(point.measured)


def print_probe(probe: Probe, answers: bool) -> None:
    """Print a run of a search."""
    show(f"{_line(probe.value, probe.measured, answers)}  {'met' if probe.met else 'missed'}: {probe.why}")


def _line(value: float, measured: Measured, answers: bool) -> str:
    summary = measured.summary
    tokens = summary.output_tokens_per_s if answers else summary.input_tokens_per_s
    latencies = f"{_pair(summary.ttft)} {_pair(summary.tpot)}" if answers else _pair(summary.e2e)
    latencies = "saturated".rjust(len(latencies)) if summary.saturated else latencies
    return f"{value:>12,.4g} {summary.requests_per_s:>12,.2f} {tokens:>13,.1f} {latencies}    "


def print_estimate(measured: Measured, concurrency: int, start: float | None) -> None:
    """Print where a search begins, and why."""
    summary = measured.summary
    sentence = (
        f"{summary.requests:,} requests, {concurrency} at a time, came to {summary.requests_per_s:,.4g} requests/s"
    )
    begins = (
        "too few to estimate from; the search begins at 1" if start is None else f"the search begins at {start:,.4g}"
    )
    figure("estimate", f"{sentence}; {begins}")


def print_next(load: Load, seconds: float, left: int | None) -> None:
    """Print which probe comes next. seconds: its minimum; 0: not known. left: maximum of probes after it; None: not
    known."""
    length = f", {duration(seconds)}" if seconds else ""
    if left is None:
        more = "how many follow is known when one has met the targets and one has missed them"
    else:
        more = f"at most {left} more after it" + (f", {duration(left * seconds)}" if seconds and left else "")
    figure("probe", f"at {load}{length}; {more}")


def print_capacity(found: Capacity, by: str, targets: Targets) -> None:
    """Print the result of a search."""
    unit = "requests/s" if by == "rate" else "requests in flight"
    of = f"with {_shown(targets) or 'the targets of its classes'} for {found.share:.1%} of the offered requests"
    if found.met is None:
        lowest = f"; at {found.missed:,.4g} they were missed" if found.missed is not None else ""
        sentence = f"no load was found {of}{lowest}"
    else:
        missed = f"missed at {found.missed:,.4g}" if found.missed is not None else "no higher one was missed"
        sentence = f"{found.met:,.4g} {unit} {of} ({missed}; {len(found.probes)} probes)"
    figure("capacity", f"{sentence}{found.ended and f'; ended early: {found.ended}'}")


def _shown(targets: Targets) -> str:
    return ", ".join(map(str, targets.limits()))


def _ends(summary: Summary) -> str:
    others = (("rejected", summary.rejected), ("failed", summary.failed), ("unfinished", summary.unfinished))
    more = "".join(f", {count:,} {name}" for name, count in others if count)
    return f"{counted(summary.offered, 'request')} offered, {summary.requests:,} completed{more}"


def _print_faults(measured: Measured) -> None:
    for fault in measured.result.health.faults:
        figure("INVALID", fault)


def _shared_targets(all_targets: Iterable[Targets]) -> str:
    """Return the targets, where all requests with targets have the same."""
    kinds = {one for one in all_targets if one}
    if len(kinds) > 1:
        return "their own targets"
    return _shown(next(iter(kinds))) if kinds else ""


def _print_latencies(summary: Summary) -> None:
    if summary.saturated and summary.ttft_trend is not None:
        growing = "TTFT" if summary.ttft.samples else "E2E"
        figure(
            "saturated",
            f"at {summary.requests_per_s:,.2f} requests/s: {growing} was still growing, by "
            f"{summary.ttft_trend.rise:,.2f} s over the window, so percentiles would depend on the length of the run",
        )
        return
    if not summary.requests:
        return
    figure("latency", f"{HEAD}  ms  (95 % confidence of p50 and p99)")
    for name in ("TTFT", "TPOT", "ITL", "E2E", "JCT", "delay"):
        one: Percentiles = getattr(summary, name.lower())
        if one.samples:
            of = {"ITL": "gaps", "JCT": "programs"}.get(name, "requests")
            intervals = f"{_interval(one.p50_interval)}; {_interval(one.p99_interval)}"
            figure(f"  {name}", f"{milliseconds(one)}  over {one.samples:,} {of}  ({intervals})")


def _interval(interval: tuple[float, float] | None) -> str:
    return "too few" if interval is None else f"{interval[0] * 1e3:,.1f}–{interval[1] * 1e3:,.1f}"


def _print_groups(kind: str, groups: Mapping[str, Summary]) -> None:
    has_tokens = any(one.ttft.samples for one in groups.values())
    figure(f"by {kind}", f"{'offered':>10} {'completed':>10} {'attained':>10} {_PAIRS if has_tokens else _WHOLE}  ms")
    for name, one in groups.items():
        latencies = f"{_pair(one.ttft)} {_pair(one.tpot)}" if has_tokens else _pair(one.e2e)
        figure(f"  {name[:10]}", f"{one.offered:>10,} {one.requests:>10,} {one.attainment:>10.1%} {latencies}")


def _pair(figures: Percentiles) -> str:
    return f"{in_ms(figures.p50)} {in_ms(figures.p99)}"
