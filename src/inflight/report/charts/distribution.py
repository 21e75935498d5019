"""Distributions: cumulative shares, percentiles with their intervals, columns of parts; and the throughput-latency
curve."""

from __future__ import annotations

import bisect
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from inflight.counted import counted
from inflight.metrics.definitions import Percentiles, quantile
from inflight.report.charts.chart import (
    MARKS,
    Chart,
    Key,
    Plot,
    Point,
    Series,
    ValueTable,
    dash_of,
    rounded,
    rounded_xs,
    scale,
    series_class,
)
from inflight.report.charts.quantity import quantity

_QUANTILES = (*(place / 120 for place in range(120)), 0.995, 0.999, 1.0)  # of a line, however many values it has
_SHOWN = ((0.1, "10 %"), (0.5, "50 %"), (0.9, "90 %"), (0.95, "95 %"), (0.99, "99 %"), (1.0, "all"))
_LEVELS = (("p50", "p50_interval"), ("p95", "p95_interval"), ("p99", "p99_interval"))
_WIDEST = 20.0  # greatest over least value, on a linear axis
_WIDEST_LOG = 1e5  # the same, on a logarithmic one


def cumulative(title: str, about: str, named: Sequence[tuple[str, Sequence[float]]], unit: str = "s") -> Chart | None:
    """Draw the share of the values that are at most x. None where there are no values."""
    ordered = [(name, sorted(values)) for name, values in named if values]
    positive = [some[bisect.bisect_right(some, 0.0)] for _, some in ordered if some[-1] > 0]
    if not positive:
        return None
    high = max(some[-1] for _, some in ordered)
    is_log = high / min(positive) > _WIDEST
    low = high / _WIDEST_LOG if is_log else 0.0
    at = {max(quantile(some, share), low) for _, some in ordered for share in _QUANTILES}
    least = min(at)
    xs = rounded_xs(sorted({0.9 * least if is_log else 0.0, least * (1 - 1e-5), *at}))
    series = [
        Series(
            name,
            series_class(index),
            dash_of(series_class(index)),
            rounded(bisect.bisect_right(some, x * (1 + 2e-6)) / len(some) for x in xs),
        )
        for index, (name, some) in enumerate(ordered)
    ]
    across, up = scale(high, "at most", unit, log=is_log), scale(1.0, "share", "share", high=1.0)
    plot = Plot("lines", across, up, series, xs, stepped=True)
    rows = [(words, *(quantity(quantile(some, at), unit) for _, some in ordered)) for at, words in _SHOWN]
    table = ValueTable(("share of the values", *(one.name for one in series)), tuple(rows))
    log = " The axis is logarithmic." if is_log else ""
    return Chart(title, about + log, plot, _keys(series), table)


def percentile_bars(title: str, about: str, named: Sequence[tuple[str, Percentiles]], unit: str = "s") -> Chart | None:
    """Draw p50, p95 and p99, each with a column for every name; whiskers are 95 % intervals."""
    named = [(name, figures) for name, figures in named if figures.samples]
    if not named:
        return None
    series, rows = [], []
    for index, (name, figures) in enumerate(named):
        values = [getattr(figures, level) for level, _ in _LEVELS]
        ends = [getattr(figures, interval) or (None, None) for _, interval in _LEVELS]
        low, high = (rounded(one) for one in zip(*ends, strict=True))
        series.append(Series(name, series_class(index), values=rounded(values), low=low, high=high))
        rows.append((name, *(_with_interval(value, end, unit) for value, end in zip(values, ends, strict=True))))
    names = [level for level, _ in _LEVELS]
    greatest = max(value or 0.0 for one in series for value in one.values)
    plot = Plot("groups", scale(0.0, ""), scale(greatest, "latency", unit), series, names=names)
    return Chart(title, about, plot, _keys(series, "area"), ValueTable(("", *names), tuple(rows)))


def _with_interval(value: float | None, ends: tuple[float | None, float | None], unit: str) -> str:
    if ends[0] is None or ends[1] is None:
        return quantity(value, unit)
    return f"{quantity(value, unit)} ({quantity(ends[0], unit)} … {quantity(ends[1], unit)})"


def _keys(series: Sequence[Series], kind: str = "line") -> tuple[Key, ...]:
    """Return the legend; a single series needs none."""
    if len(series) < 2:
        return ()
    return tuple(Key(one.name, one.colour, "area" if kind == "area" else "line", one.mark) for one in series)


@dataclass(frozen=True, slots=True)
class CurvePoint:
    """load: its name. saturated: latency was still growing, and its value measures the length of the run. valid:
    whether it is to be believed."""

    load: str
    throughput: float
    latency: float
    saturated: bool = False
    valid: bool = True


def curve(
    title: str, about: str, named: Sequence[tuple[str, Sequence[CurvePoint]]], x: tuple[str, str], y: tuple[str, str]
) -> Chart | None:
    """Draw points joined in the order of the loads. x, y: names and units of throughput and latency."""
    kept = [(name, [point for point in some if point.latency > 0]) for name, some in named]
    points = [point for _, some in kept for point in some]
    if not points:
        return None
    high = max(point.latency for point in points)
    is_log = high / min(point.latency for point in points) > _WIDEST
    series = [
        Series(
            name,
            series_class(index),
            dash_of(series_class(index)),
            points=[_drawn(point) for point in some],
            mark=MARKS[index % len(MARKS)],
        )
        for index, (name, some) in enumerate(kept)
    ]
    if any(point.saturated for point in points):
        about += " Hollow: latency was still growing, and the value measures the run's length."
    if invalid := sum(not point.valid for point in points):
        about += f" Crossed out ({counted(invalid, 'run')}): not valid, do not believe its value."
    if is_log:
        about += " The latency axis is logarithmic."
    across = scale(max(point.throughput for point in points), *x)
    plot = Plot("points", across, scale(high, *y, log=is_log), series)
    rows = [
        (f"{name}, {point.load}" if len(kept) > 1 else point.load, *_said(point, x[1], y[1]))
        for name, some in kept
        for point in some
    ]
    table = ValueTable(("", x[0], y[0]), tuple(rows))
    return Chart(title, about, plot, _keys(series), table)


def _drawn(point: CurvePoint) -> Point:
    return Point(point.throughput, point.latency, point.load, point.saturated, not point.valid)


def _said(point: CurvePoint, x: str, y: str) -> tuple[str, str]:
    doubts = [words for words, is_so in (("saturated", point.saturated), ("not valid", not point.valid)) if is_so]
    return quantity(point.throughput, x), ", ".join((quantity(point.latency, y), *doubts))


class Column(NamedTuple):
    """A column of a histogram. name: below it. parts: values from the bottom up, as many as keys. label: above it,
    where there is room."""

    name: str
    parts: Sequence[float]
    label: str


def histogram(
    title: str, about: str, columns: Sequence[Column], keys: Sequence[Key], x: str, y: tuple[str, str]
) -> Chart | None:
    """Draw columns of stacked parts; None where there is nothing to show.

    Args:
        title: Of the chart.
        about: Its caption.
        columns: From the left.
        keys: Name and class of each part; a single one has no legend.
        x: The meaning of the columns' names.
        y: Name and unit of the values.
    """
    greatest = max((sum(column.parts) for column in columns), default=0.0)
    if greatest <= 0:
        return None
    series = [
        Series(key.name, key.class_, values=rounded(column.parts[index] for column in columns))
        for index, key in enumerate(keys)
    ]
    names, labels = [column.name for column in columns], [column.label for column in columns]
    plot = Plot("columns", scale(0.0, x), scale(greatest, *y), series, names=names, labels=labels)
    has_labels = any(labels) and len(keys) > 1
    rows = [(one.name, *(quantity(value, y[1]) for value in one.parts), one.label) for one in columns]
    table = [(x, *(key.name for key in keys), "above it"), *rows]
    table = table if has_labels else [row[:-1] for row in table]
    if len(keys) > len(columns):  # a table is narrow
        table = list(zip(*table, strict=True))
    return Chart(title, about, plot, tuple(keys) if len(keys) > 1 else (), ValueTable(table[0], tuple(table[1:])))
