"""Lines and stacked areas over time: each point is the mean of a stretch of time, and a band spans its values."""

from __future__ import annotations

from collections.abc import Sequence

from inflight.metrics.summary import Window
from inflight.report.charts.chart import (
    Chart,
    Key,
    Plot,
    Series,
    ValueTable,
    dash_of,
    rounded,
    rounded_xs,
    scale,
    series_class,
)
from inflight.report.charts.quantity import quantity
from inflight.report.steps.series import Column, StepFunction

COLUMNS = 300  # stretches that a chart shows: as many as a card has room for, however long the run was
_ROWS = 8  # stretches of its table
Named = Sequence[tuple[str, StepFunction]]


def over_time(
    title: str,
    about: str,
    named: Named,
    span: Window,
    what: tuple[str, str],
    limit: tuple[str, float] | None = None,
    resolution: float = 0.0,
) -> Chart:
    """Draw lines. what: name and unit of the values. limit: a name, and the greatest possible value. resolution:
    seconds over which the values were counted, where they do not hold at every moment."""
    greatest = max([function.greatest for _, function in named] + [limit[1] if limit else 0.0])
    columns = [function.columns(span.start, span.end, COLUMNS) for _, function in named]
    series = [
        _line(name, series_class(index), some)
        for index, ((name, _), some) in enumerate(zip(named, columns, strict=True))
    ]
    keys = [Key(one.name, one.colour) for one in series]
    keys += [Key(limit[0], "limit", "limit")] if limit else []
    stretch = span.seconds / COLUMNS
    meant = f"Each point is the mean over {quantity(stretch, 's')}; the band spans its values."
    if resolution > stretch:
        meant = f"Each value is the mean over {quantity(resolution, 's')}."
    plot = Plot(
        "lines",
        scale(span.seconds, "time", "s", high=span.seconds),
        scale(greatest, *what),
        series,
        _times(columns[0], span),
        limit=limit[1] if limit else None,
    )
    return Chart(title, f"{about} {meant}", plot, tuple(keys if len(keys) > 1 else ()), _table(named, span, what[1]))


def stack(
    title: str, about: str, bands: Sequence[tuple[str, StepFunction, str]], span: Window, what: tuple[str, str]
) -> Chart:
    """Draw stacked areas. bands: name, values, and the class of its colour, from the bottom up."""
    columns = [function.columns(span.start, span.end, COLUMNS) for _, function, _ in bands]
    series = [
        Series(name, class_, values=rounded([*(one.mean for one in some), some[-1].mean]))
        for (name, _, class_), some in zip(bands, columns, strict=True)
    ]
    greatest = max((sum(one.mean for one in at) for at in zip(*columns, strict=True)), default=0.0)
    xs = [span.seconds * index / COLUMNS for index in range(COLUMNS + 1)]
    plot = Plot("stack", scale(span.seconds, "time", "s"), scale(greatest, *what), series, rounded_xs(xs))
    keys = tuple(Key(one.name, one.colour, "area") for one in series)
    meant = f"{about} Each column is the mean over {quantity(span.seconds / COLUMNS, 's')}."
    return Chart(title, meant, plot, keys, _table([(name, one) for name, one, _ in bands], span, what[1]))


def _line(name: str, colour: str, columns: Sequence[Column]) -> Series:
    mean = rounded(one.mean for one in columns)
    if all(one.high == one.low for one in columns):
        return Series(name, colour, dash_of(colour), mean)
    low, high = rounded(one.low for one in columns), rounded(one.high for one in columns)
    return Series(name, colour, dash_of(colour), mean, low, high)


def _times(columns: Sequence[Column], span: Window) -> list[float]:
    return rounded_xs(one.time - span.start for one in columns)


def _table(named: Named, span: Window, unit: str) -> ValueTable:
    """Return the values in a few stretches of the time."""
    columns = [function.columns(span.start, span.end, _ROWS) for _, function in named]
    rows = []
    for index, at in enumerate(zip(*columns, strict=True)):
        ends = (quantity(span.seconds * end / _ROWS, "s") for end in (index, index + 1))
        rows.append((" to ".join(ends), *(_cell(one, unit) for one in at)))
    return ValueTable(("time", *(name for name, _ in named)), tuple(rows))


def _cell(column: Column, unit: str) -> str:
    """Return the mean, and the maximum where that is more."""
    mean, high = quantity(column.mean, unit), quantity(column.high, unit)
    return mean if mean == high else f"{mean} (max {high})"
