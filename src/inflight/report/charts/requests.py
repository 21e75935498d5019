"""Requests over time: a lane for each, from its arrival to its end, with its waiting and its work."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from inflight.metrics.summary import Window
from inflight.report.charts.chart import Key
from inflight.report.charts.frame import WIDE, Axis, Frame
from inflight.report.charts.quantity import shortened
from inflight.report.charts.svg import Drawing, rectangle, tag, text

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
    """Draw requests. requests: name and segments of each, in the order of the lanes from the top."""
    if not requests:
        return None
    used = {class_ for _, segments in requests for class_, _, _ in segments}
    keys = [Key(name, class_, "area") for class_, name in NAMES.items() if class_ in used]
    row = max(7.0, min(18.0, 420.0 / len(requests)))
    frame = Frame(Axis(0.0, span.seconds, "time", "s"), keys, row * len(requests), left=74)
    paths: dict[str, list[str]] = defaultdict(list)
    names = []
    every = 1 if row >= 11 else 2
    for index, (name, segments) in enumerate(requests):
        y = frame.top + index * row
        if index % every == 0:
            names.append(text(frame.left - 6, y + row / 2 + 4, shortened(name), anchor="end"))
        for class_, start, end in segments:
            x = frame.at_x(start - span.start)
            paths[class_].append(rectangle(x, y + 1, max(frame.at_x(end - span.start) - x, 0.5), row - 2))
    body = "".join(tag("path", d="".join(d), class_=f"area {class_}") for class_, d in paths.items())
    return Drawing(title, about, WIDE, frame.height, frame.around("".join(names) + body), wide=True)
