"""Lying bars of parts that make a whole: where requests' time went."""

from __future__ import annotations

from collections.abc import Sequence

from inflight.report.charts.axis import Axis, from_zero
from inflight.report.charts.drawing import Drawing
from inflight.report.charts.frame import WIDTH, Frame, Key
from inflight.report.charts.quantity import quantity
from inflight.report.charts.svg import rectangle, tag, text

Part = tuple[str, float, str]  # name, value, class
_BAR = 30


def part_bars(
    title: str, about: str, named: Sequence[tuple[str, Sequence[Part]]], what: tuple[str, str]
) -> Drawing | None:
    """A bar for every name, of its parts in their order. None where there is nothing to show."""
    greatest = max((sum(value for _, value, _ in parts) for _, parts in named), default=0.0)
    if greatest <= 0:
        return None
    keys = {
        name: Key(name, class_, "area")
        for _, parts in named
        for name, value, class_ in parts
        if value > 0.002 * greatest
    }
    row = _BAR + (18 if len(named) > 1 else 0)
    probe = Frame(from_zero(greatest, *what), Axis(0, 1, ""), list(keys.values()))
    height = probe.top - 12 + row * len(named) + 46
    frame = Frame(Axis(0.0, greatest, *what), Axis(0, 1, ""), list(keys.values()), WIDTH, height)
    frame.left = 6
    body = []
    for place, (name, parts) in enumerate(named):
        y = frame.top - 6 + place * row
        if len(named) > 1:
            body.append(text(frame.left, y + 10, f"{name}: {quantity(sum(value for _, value, _ in parts), what[1])}"))
            y += 16
        done = 0.0
        for part, value, class_ in parts:
            x, end = frame.at_x(done), frame.at_x(done + value)
            if value > 0:
                said = f"{part}: {quantity(value, what[1])}"
                body.append(
                    tag("path", tag("title", said), d=rectangle(x, y, end - x, _BAR - 6), class_=f"area edge {class_}")
                )
            done += value
    return Drawing(title, about, WIDTH, height, frame.around("".join(body), y_ticks=False))
