"""Print a measured run on standard error: throughput and latency side by side."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from inflight.bench.capacity import Capacity, Probe
from inflight.bench.offering import Load
from inflight.bench.run import Measured, Point
from inflight.cli.progress import duration
from inflight.cli.summary import milliseconds, show
from inflight.counted import counted
from inflight.metrics.definitions import Percentiles
from inflight.metrics.observation import Targets
from inflight.metrics.summary import Summary

_PAIRS = f"{'TTFT p50':>10} {'p99':>10} {'TPOT p50':>10} {'p99':>10}"
_WHOLE = f"{'E2E p50':>10} {'p99':>10}"  # of answers without tokens


def print_measured(measured: Measured, notes: tuple[str, ...]) -> None:
    summary = measured.summary
    lines = [f"{measured.workload.name}"] if measured.workload.name else []
    lines.append(_ends(summary) + f" in {summary.wall_seconds:,.2f} s, measured {measured.why}")
    if measured.partial:
        lines.append("interrupted: this is the part that was measured until then")
    made = f"{summary.output_tokens_per_s:,.1f} output tokens/s   " if summary.ttft.samples else ""
    lines.append(
        f"throughput   {summary.requests_per_s:,.2f} requests/s   {made}"
        f"{summary.input_tokens_per_s:,.1f} input tokens/s "
        f"({summary.cached_tokens:,} of {summary.prompt_tokens:,} cached)"
    )
    targets = _shared_targets(one.targets for one in measured.observations)
    if targets:
        lines.append(
            f"goodput      {summary.goodput:,.2f} requests/s: {summary.attainment:.1%} of the offered met {targets}"
        )
    lines.append(
        f"in flight    {summary.concurrency:,.1f} requests on average (by Little's law "
        f"{summary.concurrency_by_little:,.1f}); {summary.offered_per_s:,.2f} offered/s"
    )
    lines += _latencies(summary)
    for kind, groups in (("class", measured.by_class), ("lane", measured.by_lane), ("tenant", measured.by_tenant)):
        if len(groups) > 1:
            lines += _groups(kind, groups)
    show("\n".join(lines))
    print_notes((*notes, *measured.notes))
    _print_faults(measured)


def print_notes(notes: Sequence[str]) -> None:
    for note in notes:
        show(f"note         {note}")


@dataclass(frozen=True, slots=True)
class Curve:
    """A line for each load. answers: whether tokens come back; else what is read and how long all of it takes is all
    that there is to show."""

    answers: bool

    def print_header(self, by: str) -> None:
        value = "requests/s" if by == "rate" else "concurrency"
        tokens, latencies = ("output tok/s", _PAIRS) if self.answers else ("input tok/s", _WHOLE)
        show(f"{value:>12} {'completed/s':>12} {tokens:>13} {latencies}  ms")

    def print_point(self, point: Point) -> None:
        show(self._line(point.value, point.measured))
        _print_faults(point.measured)

    def print_probe(self, probe: Probe) -> None:
        verdict = "met" if probe.met else "missed"
        show(f"{self._line(probe.value, probe.measured)}  {verdict}: {probe.why}")

    def _line(self, value: float, measured: Measured) -> str:
        summary = measured.summary
        tokens = summary.output_tokens_per_s if self.answers else summary.input_tokens_per_s
        latencies = f"{_pair(summary.ttft)} {_pair(summary.tpot)}" if self.answers else _pair(summary.e2e)
        latencies = "saturated".rjust(len(latencies)) if summary.saturated else latencies
        return f"{value:>12,.4g} {summary.requests_per_s:>12,.2f} {tokens:>13,.1f} {latencies}    "


def print_estimate(measured: Measured, places: int, start: float | None) -> None:
    summary = measured.summary
    sentence = f"{summary.requests:,} requests, {places} at a time, came to {summary.requests_per_s:,.4g} requests/s"
    begins = "too little to go by; the search begins at 1" if start is None else f"the search begins at {start:,.4g}"
    show(f"estimate     {sentence}; {begins}")


def print_next(load: Load, seconds: float, left: int | None) -> None:
    """Before a probe. seconds: that it takes at least; 0: not known. left: probes after it at most; None: not known."""
    length = f", {duration(seconds)}" if seconds else ""
    if left is None:
        more = "how many follow is known once one was met and one was missed"
    else:
        more = f"at most {left} more after it" + (f", {duration(left * seconds)}" if seconds and left else "")
    show(f"probe        at {load}{length}; {more}")


def print_capacity(found: Capacity, by: str, targets: Targets) -> None:
    unit = "requests/s" if by == "rate" else "requests in flight"
    of = f"with {_shown(targets) or 'the targets of its classes'} for {found.share:.1%} of the offered requests"
    if found.met is None:
        lowest = f"; at {found.missed:,.4g} they were missed" if found.missed is not None else ""
        sentence = f"no load was found {of}{lowest}"
    else:
        missed = f"missed at {found.missed:,.4g}" if found.missed is not None else "no higher one was missed"
        sentence = f"{found.met:,.4g} {unit} {of} ({missed}; {len(found.probes)} probes)"
    show(f"capacity     {sentence}{found.ended and f'; ended early: {found.ended}'}")


def _shown(targets: Targets) -> str:
    return ", ".join(map(str, targets.limits()))


def _ends(summary: Summary) -> str:
    others = (("rejected", summary.rejected), ("failed", summary.failed), ("unfinished", summary.unfinished))
    more = "".join(f", {count:,} {name}" for name, count in others if count)
    return f"{counted(summary.offered, 'request')} offered, {summary.requests:,} completed{more}"


def _print_faults(measured: Measured) -> None:
    for fault in measured.result.health.faults:
        show(f"INVALID      {fault}")


def _shared_targets(all_targets: Iterable[Targets]) -> str:
    """The targets, where all have the same; else how many kinds there are."""
    kinds = {one for one in all_targets if one}
    if len(kinds) > 1:
        return "their own targets"
    return _shown(next(iter(kinds))) if kinds else ""


def _latencies(summary: Summary) -> list[str]:
    growing = "TTFT" if summary.ttft.samples else "E2E"
    if summary.saturated and summary.ttft_trend is not None:
        return [
            f"saturated    at {summary.requests_per_s:,.2f} requests/s: {growing} was still growing, by "
            f"{summary.ttft_trend.rise:,.2f} s over the window, and percentiles would measure the length of the run"
        ]
    if not summary.requests:
        return []
    lines = [f"latency      {'mean':>10} {'p50':>10} {'p95':>10} {'p99':>10}  ms  (95 % confidence of p50 and p99)"]
    kinds = (
        ("TTFT", summary.ttft, "requests"),
        ("TPOT", summary.tpot, "requests"),
        ("ITL", summary.itl, "gaps"),
        ("E2E", summary.e2e, "requests"),
        ("delay", summary.delay, "requests"),
    )
    return lines + [
        f"  {name:<10} {milliseconds(figures)}  over {figures.samples:,} {what}  ({_intervals(figures)})"
        for name, figures, what in kinds
        if figures.samples
    ]


def _intervals(figures: Percentiles) -> str:
    def shown(interval: tuple[float, float] | None) -> str:
        return "too few" if interval is None else f"{interval[0] * 1e3:,.1f}–{interval[1] * 1e3:,.1f}"

    return f"{shown(figures.p50_interval)}; {shown(figures.p99_interval)}"


def _groups(kind: str, groups: Mapping[str, Summary]) -> list[str]:
    has_tokens = any(one.ttft.samples for one in groups.values())
    rows = (
        f"  {name[:10]:<10} {one.offered:>10,} {one.requests:>10,} {one.attainment:>10.1%} "
        + (f"{_pair(one.ttft)} {_pair(one.tpot)}" if has_tokens else _pair(one.e2e))
        for name, one in groups.items()
    )
    latencies = _PAIRS if has_tokens else _WHOLE
    return [f"by {kind:<9} {'offered':>10} {'completed':>10} {'attained':>10} {latencies}  ms", *rows]


def _pair(figures: Percentiles) -> str:
    return " ".join(f"{'-' if one is None else format(one * 1e3, ',.1f'):>10}" for one in (figures.p50, figures.p99))
