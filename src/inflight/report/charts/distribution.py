"""Latency: how it is spread (cumulative shares over a logarithmic axis, bars of percentiles with their intervals), and
the throughput-latency curve: what a setting gives at each load, and what it costs the one who waits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from inflight.metrics.definitions import Percentiles, quantile
from inflight.report.charts.frame import HEIGHT, WIDTH, Axis, Frame, Key, cross, from_zero, mark, text_width
from inflight.report.charts.lines import series_class
from inflight.report.charts.quantity import digits, quantity, scale_of
from inflight.report.charts.svg import Drawing, polyline, rectangle, tag, text

_POINTS = 160  # of a line; each is a quantile, so that any number of values fits
_LEVELS = (("p50", "p50_interval"), ("p95", "p95_interval"), ("p99", "p99_interval"))


def cumulative(title: str, about: str, named: Sequence[tuple[str, Sequence[float]]], unit: str = "s") -> Drawing | None:
    """Share of the values that are at most x. None where nobody has any value."""
    named = [(name, sorted(values)) for name, values in named]
    positive = [value for _, values in named for value in values if value > 0]
    if not positive:
        return None
    low, high = min(positive), max(positive)
    low = max(low, high / 1e5)
    is_log = high / low > 20
    x = Axis(low, high, "at most", unit, log=True) if is_log else from_zero(high, "at most", unit)
    frame = Frame(x, Axis(0.0, 1.0, "share", "share"), _keys([name for name, _ in named]))
    parts = []
    for index, (_, ordered) in enumerate(named):
        if ordered:
            number = min(len(ordered), _POINTS)
            shares = [place / max(number - 1, 1) for place in range(number)]
            points = [frame.at(quantile(ordered, share), share) for share in shares]
            parts.append(tag("path", d=polyline(points), class_=f"line {series_class(index)}"))
    about = f"{about} {_POINTS} quantiles are drawn{'; the axis is logarithmic' if is_log else ''}."
    return Drawing(title, about, WIDTH, HEIGHT, frame.around("".join(parts)))


def percentile_bars(
    title: str, about: str, named: Sequence[tuple[str, Percentiles]], unit: str = "s", width: float = WIDTH
) -> Drawing | None:
    """p50, p95 and p99 side by side, each with a bar for every name; whiskers are 95 % intervals."""
    named = [(name, figures) for name, figures in named if figures.samples]
    if not named:
        return None
    values = [getattr(figures, level) for _, figures in named for level, _ in _LEVELS]
    ends = [end[1] for _, figures in named for _, interval in _LEVELS if (end := getattr(figures, interval))]
    y = from_zero(min(max(values + ends), 2.5 * max(values)), "latency", unit)
    frame = Frame(Axis(0.0, 3.0, ""), y, _keys([name for name, _ in named], "area"), width)
    parts = []
    group = (frame.right - frame.left) / len(_LEVELS)
    bar = min(46.0, group * 0.8 / len(named))
    for place, (level, interval) in enumerate(_LEVELS):
        left = frame.left + group * place + (group - bar * len(named)) / 2
        for index, (name, figures) in enumerate(named):
            x, value = left + bar * index, getattr(figures, level)
            ends = getattr(figures, interval)
            said = f"{name}, {level}: {quantity(value, unit)}"
            d = rectangle(x + 1, frame.at_y(value), max(bar - 2, 1), frame.bottom - frame.at_y(value))
            parts.append(tag("path", tag("title", said), d=d, class_=f"area {series_class(index)}"))
            parts.append(_whisker(frame, x + bar / 2, ends))
            label = digits(value / scale_of(y.high, unit)[0])
            if text_width(label) < bar:
                above = frame.at_y(max(value, ends[1]) if ends else value) - 5
                parts.append(text(x + bar / 2, max(above, frame.top - 2), label, anchor="middle"))
        parts.append(text(frame.left + group * (place + 0.5), frame.bottom + 16, level, anchor="middle"))
    return Drawing(title, about, width, HEIGHT, frame.around("".join(parts), x_ticks=False), width > WIDTH)


def _whisker(frame: Frame, x: float, interval: tuple[float, float] | None) -> str:
    if interval is None:
        return ""
    low, high = frame.at_y(interval[0]), frame.at_y(interval[1])
    return tag(
        "path", d=f"M{x:.1f} {low:.1f}V{high:.1f}M{x - 3:.1f} {low:.1f}h6M{x - 3:.1f} {high:.1f}h6", class_="whisker"
    )


def _keys(names: Sequence[str], kind: str = "line") -> list[Key]:
    return [Key(name, series_class(index), kind) for index, name in enumerate(names)] if len(names) > 1 else []


@dataclass(frozen=True, slots=True)
class CurvePoint:
    """load: in words. saturated: latency was still growing, so that its value tells the length of the run. valid:
    whether it is to be believed."""

    load: str
    throughput: float
    latency: float
    saturated: bool = False
    valid: bool = True


def curve(
    title: str, about: str, named: Sequence[tuple[str, Sequence[CurvePoint]]], x: tuple[str, str], y: tuple[str, str]
) -> Drawing | None:
    """x, y: names and units of throughput and latency. Points are joined in the order of the loads."""
    points = [point for _, one in named for point in one if point.latency > 0]
    if not points:
        return None
    low, high = min(point.latency for point in points), max(point.latency for point in points)
    is_log = high / low > 20
    across = from_zero(max(point.throughput for point in points), *x)
    up = Axis(low / 1.3, high * 1.3, *y, log=True) if is_log else from_zero(high, *y)
    keys = [Key(name, series_class(index), "marked", index) for index, (name, _) in enumerate(named)]
    frame = Frame(across, up, keys)
    parts = []
    for index, (name, one) in enumerate(named):
        shown = [point for point in one if point.latency > 0]
        if len(shown) > 1:
            places = [frame.at(point.throughput, point.latency) for point in shown]
            parts.append(tag("path", d=polyline(places), class_=f"line {series_class(index)}"))
        for point in shown:
            said = f"{name}, {point.load}: {quantity(point.throughput, x[1])}, {quantity(point.latency, y[1])}"
            class_ = f"{series_class(index)}{' hollow' if point.saturated else ''}"
            drawn = mark(frame.at(point.throughput, point.latency), index, class_)
            if not point.valid:
                said += "; not valid"
                drawn += cross(frame.at(point.throughput, point.latency))
            parts.append(tag("g", tag("title", said) + drawn))
    if any(point.saturated for point in points):
        about += " Hollow: latency was still growing, the value tells the run's length."
    if not all(point.valid for point in points):
        about += " Crossed out: the run is not valid, do not believe its value."
    if is_log:
        about += " The latency axis is logarithmic."
    return Drawing(title, about, WIDTH, HEIGHT, frame.around("".join(parts)))
