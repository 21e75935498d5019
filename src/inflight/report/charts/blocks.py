"""Memory over time: the KV blocks of each owner, shared ones, cached ones and free ones."""

from __future__ import annotations

from collections.abc import Sequence

from inflight.metrics.summary import Window
from inflight.report.charts.chart import Key
from inflight.report.charts.frame import WIDTH, Axis, Frame
from inflight.report.charts.quantity import quantity
from inflight.report.charts.svg import Drawing, Point, polyline, tag
from inflight.report.steps.series import StepFunction

_TALL = 146.0  # pixels of the plot
_COLUMN = 2  # pixels of a stretch of time


def blocks_picture(
    title: str,
    about: str,
    bands: Sequence[tuple[str, StepFunction, str]],
    span: Window,
    total: float,
    width: float = WIDTH,
) -> Drawing:
    """Draw stacked blocks. bands: name, blocks, and the class of its colour, from the bottom up. total: free ones
    included."""
    keys = [Key(name, class_, "area") for name, _, class_ in bands if name]
    frame = Frame(Axis(0.0, span.seconds, "time", "s"), keys, _TALL, width, y=Axis(0.0, total, "blocks", "blocks"))
    number = int(frame.right - frame.left) // _COLUMN
    base = [0.0] * number
    parts = []
    for _, function, class_ in bands:
        columns = function.columns(span.start, span.end, number)
        top = [below + column.mean for below, column in zip(base, columns, strict=True)]
        if any(column.mean > 0 for column in columns):
            parts.append(tag("path", d=_area(frame, base, top), class_=f"area {class_}"))
        base = top
    said = f"{about} Each column is the mean over {quantity(span.seconds / number, 's')}."
    return Drawing(title, said, width, frame.height, frame.around("".join(parts)), width > WIDTH)


def _area(frame: Frame, base: list[float], top: list[float]) -> str:
    """Return path data between two stepped lines, without stretches that have no height."""
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
