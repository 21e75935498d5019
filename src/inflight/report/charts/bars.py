"""Lying bars: of parts that make a whole, as where requests' time went; and a lane for each request, from its arrival
to its end, with what it waited for and what it got.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from inflight.metrics.summary import Window
from inflight.report.charts.batch import WIDE
from inflight.report.charts.frame import WIDTH, Axis, Frame, Key, from_zero
from inflight.report.charts.quantity import quantity, shortened
from inflight.report.charts.svg import Drawing, rectangle, tag, text

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


Segment = tuple[str, float, float]  # class, start, end

NAMES = {
    "waiting": "waits",
    "prefill": "prefill",
    "recomputed": "recomputed",
    "decode": "decode",
    "padding": "answer ready, batch not ended",
    "idle": "has a row, nothing computed",
    "s4": "preempted",
}


def request_timelines(
    title: str, about: str, requests: Sequence[tuple[str, Sequence[Segment]]], span: Window
) -> Drawing | None:
    """requests: name, and its segments; in the order of the lanes from the top."""
    if not requests:
        return None
    used = {class_ for _, segments in requests for class_, _, _ in segments}
    keys = [Key(name, class_, "area") for class_, name in NAMES.items() if class_ in used]
    row = max(7.0, min(18.0, 420.0 / len(requests)))
    probe = Frame(Axis(0, 1, ""), Axis(0, 1, ""), keys, WIDE)
    height = probe.top - 12 + row * len(requests) + 42
    frame = Frame(Axis(0.0, span.seconds, "time", "s"), Axis(0, 1, ""), keys, WIDE, height)
    frame.left = 74
    top = frame.top - 12
    paths: dict[str, list[str]] = defaultdict(list)
    names = []
    every = 1 if row >= 11 else 2
    for place, (name, segments) in enumerate(requests):
        y = top + place * row
        if place % every == 0:
            names.append(text(frame.left - 6, y + row / 2 + 4, shortened(name), anchor="end"))
        for class_, start, end in segments:
            x = frame.at_x(start - span.start)
            paths[class_].append(rectangle(x, y + 1, max(frame.at_x(end - span.start) - x, 0.5), row - 2))
    body = "".join(tag("path", d="".join(d), class_=f"area {class_}") for class_, d in paths.items())
    return Drawing(title, about, WIDE, height, frame.around("".join(names) + body, y_ticks=False), wide=True)
