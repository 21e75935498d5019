"""Histograms: a column for each number from the least to the greatest, of parts that lie on each other."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from inflight.report.charts.frame import HEIGHT, WIDTH, Axis, Frame, Key, from_zero, text_width
from inflight.report.charts.svg import Drawing, rectangle, tag, text

_WIDEST = 46.0  # pixels of a column


class Column(NamedTuple):
    """name: below it. parts: values from the bottom up, as many as keys. label: above it, where there is room. said:
    in words, to who points at it."""

    name: str
    parts: Sequence[float]
    label: str
    said: str


def histogram(
    title: str, about: str, columns: Sequence[Column], keys: Sequence[Key], x: str, y: tuple[str, str]
) -> Drawing | None:
    """keys: name and class of each part; one alone has no legend. x: what the columns' names are. y: name and unit of
    the values. None where there is nothing to show."""
    greatest = max((sum(column.parts) for column in columns), default=0.0)
    if greatest <= 0:
        return None
    across = Axis(0.0, float(len(columns)), x)
    frame = Frame(across, from_zero(greatest, *y), list(keys) if len(keys) > 1 else [])
    space = (frame.right - frame.left) / len(columns)
    every = 1 + int(max(text_width(column.name) for column in columns) // space)
    width = min(_WIDEST, 0.8 * space)
    body = []
    for place, column in enumerate(columns):
        middle = frame.at_x(place + 0.5)
        body.append(tag("g", tag("title", column.said) + _parts(frame, column, keys, middle - width / 2, width)))
        if text_width(column.label) < space:
            top = frame.at_y(sum(column.parts))
            body.append(text(middle, top - 5, column.label, anchor="middle"))
        if place % every == 0:
            body.append(text(middle, frame.bottom + 16, column.name, anchor="middle"))
    body.append(text((frame.left + frame.right) / 2, frame.bottom + 31, x, "label", "middle"))
    return Drawing(title, about, WIDTH, HEIGHT, frame.around("".join(body), x_ticks=False))


def _parts(frame: Frame, column: Column, keys: Sequence[Key], x: float, width: float) -> str:
    drawn, below = [], 0.0
    for value, key in zip(column.parts, keys, strict=True):
        if value > 0:
            top, bottom = frame.at_y(below + value), frame.at_y(below)
            d = rectangle(x, top, width, bottom - top)
            drawn.append(tag("path", d=d, class_=f"area edge {key.class_}"))
        below += value
    return "".join(drawn)
