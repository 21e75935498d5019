"""Lines and stacked areas over time: each point stands for a stretch of time, and a band shows what it held."""

from __future__ import annotations

from collections.abc import Sequence

from inflight.metrics.summary import Window
from inflight.report.charts.frame import HEIGHT, WIDTH, Axis, Frame, Key, from_zero
from inflight.report.charts.palette import SERIES
from inflight.report.charts.quantity import quantity
from inflight.report.charts.svg import Drawing, Point, polyline, tag
from inflight.report.steps.series import Column, StepFunction


def series_class(index: int) -> str:
    return f"s{index % SERIES + 1}"


def over_time(
    title: str,
    about: str,
    named: Sequence[tuple[str, StepFunction]],
    span: Window,
    what: tuple[str, str],
    limit: tuple[str, float] | None = None,
    resolution: float = 0.0,
) -> Drawing:
    """what: name and unit of the values. limit: a name, and the value that cannot be exceeded. resolution: seconds over
    which the values were counted, where they do not hold at every moment."""
    greatest = max([function.greatest for _, function in named] + [limit[1] if limit else 0.0])
    x, y = Axis(0.0, span.seconds, "time", "s"), from_zero(greatest, *what)
    keys = [Key(name, series_class(index)) for index, (name, _) in enumerate(named)]
    keys += [Key(limit[0], "limit")] if limit else []
    frame = Frame(x, y, keys if len(keys) > 1 else [])
    parts = []
    for index, (_, function) in enumerate(named):
        columns = function.columns(span.start, span.end, frame.columns)
        parts.append(_line(frame, columns, span.start, series_class(index)))
    if limit:
        parts.append(tag("path", d=f"M{frame.left} {frame.at_y(limit[1]):.1f}H{frame.right}", class_="limit"))
    column = span.seconds / frame.columns
    meant = f"Each point is the mean over {quantity(column, 's')}; the band spans the least and the most in it."
    if resolution > column:
        meant = f"Each value is the mean over {quantity(resolution, 's')}."
    return Drawing(title, f"{about} {meant}", WIDTH, HEIGHT, frame.around("".join(parts)))


def _line(frame: Frame, columns: Sequence[Column], start: float, class_: str) -> str:
    upper = [frame.at(column.time - start, column.high) for column in columns]
    lower = [frame.at(column.time - start, column.low) for column in reversed(columns)]
    middle = [frame.at(column.time - start, column.mean) for column in columns]
    band = ""
    if any(column.high > column.low for column in columns):
        band = tag("path", d=polyline(upper + lower) + "z", class_=f"band {class_}")
    return band + tag("path", d=polyline(middle), class_=f"line {class_}")


def stack(
    title: str,
    about: str,
    bands: Sequence[tuple[str, StepFunction, str]],
    span: Window,
    what: tuple[str, str],
    total: float | None = None,
    width: float = WIDTH,
    height: float = HEIGHT,
) -> Drawing:
    """bands: name, values, and the class of its colour, from the bottom up. total: what all add up to, where fixed."""
    pictured = Axis(0.0, span.seconds, "time", "s")
    keys = [Key(name, class_, "area") for name, _, class_ in bands if name]
    probe = Frame(pictured, Axis(0, 1, ""), keys, width, height)
    columns = [function.columns(span.start, span.end, probe.columns) for _, function, _ in bands]
    sums = [sum(one.mean for one in at) for at in zip(*columns, strict=True)]
    y = Axis(0.0, total, *what) if total else from_zero(max(sums, default=0.0), *what)
    frame = Frame(pictured, y, keys, width, height)
    base = [0.0] * frame.columns
    parts = []
    for (_, _, class_), band in zip(bands, columns, strict=True):
        top = [below + column.mean for below, column in zip(base, band, strict=True)]
        if any(column.mean > 0 for column in band):
            parts.append(tag("path", d=_area(frame, base, top), class_=f"area {class_}"))
        base = top
    stretch = quantity(span.seconds / frame.columns, "s")
    return Drawing(
        title,
        f"{about} Each column is the mean over {stretch}.",
        width,
        height,
        frame.around("".join(parts)),
        width > WIDTH,
    )


def _area(frame: Frame, base: list[float], top: list[float]) -> str:
    """Path data between two lines, in steps; stretches without height are left out."""
    width = (frame.right - frame.left) / len(top)
    found, index = [], 0
    while index < len(top):
        if top[index] <= base[index]:
            index += 1
            continue
        start = index
        while index < len(top) and top[index] > base[index]:
            index += 1
        upper = _stairs(frame, top, start, index, width)
        lower = _stairs(frame, base, start, index, width)
        found.append(polyline([*upper, *reversed(lower)]) + "z")
    return "".join(found)


def _stairs(frame: Frame, values: list[float], start: int, end: int, width: float) -> list[Point]:
    points: list[Point] = []
    for index in range(start, end):
        y = frame.at_y(values[index])
        left = frame.left + index * width
        if len(points) >= 2 and abs(points[-1].y - y) < 0.05:
            points[-1] = Point(left + width, y)
        else:
            points += [Point(left, y), Point(left + width, y)]
    return points
