"""The throughput-latency curve: what a setting gives at each load, and what it costs the one who waits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from inflight.report.charts.axis import Axis, from_zero
from inflight.report.charts.frame import HEIGHT, WIDTH, Frame, Key, cross, mark
from inflight.report.charts.lines import series_class
from inflight.report.charts.quantity import quantity
from inflight.report.charts.svg import Drawing, polyline, tag


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
