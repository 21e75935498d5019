"""The batch over time, a lane for each row with the work computed there; and its requests, a lane for each.

Few runs of rows are drawn one by one; many are merged, so that each stretch shows what its row did for most of it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from inflight.metrics.summary import Window
from inflight.records.computed import Work
from inflight.report.charts.chart import Key
from inflight.report.charts.frame import WIDE, Axis, Frame
from inflight.report.charts.quantity import quantity, shortened
from inflight.report.charts.svg import Drawing, number, rectangle, tag, text
from inflight.report.steps.rows import RowRun

MAX_CELLS = 12_000
MAX_ROWS = 96
_STEP_SPACE = 6  # pixels that a step must have on average, to be drawn
_QUEUE = 46  # height of the queue's strip
_BELOW = 6  # pixels between the last row and the axis
_TALL = (Work.PREFILL, Work.RECOMPUTE)
_LOW = 0.72  # of a lane's height: single tokens
CLASSES = {
    Work.PREFILL: "prefill",
    Work.RECOMPUTE: "recomputed",
    Work.DECODE: "decode",
    Work.PADDING: "padding",
    Work.IDLE: "idle",
}
_NAMES = {
    Work.PREFILL: "prefill",
    Work.RECOMPUTE: "recomputed after a preemption",
    Work.DECODE: "decode",
    Work.PADDING: "padding",
    Work.IDLE: "has its row, nothing computed",
}


Segment = tuple[str, float, float]  # class, start, end

_REQUEST_NAMES = {
    "waiting": "waits",
    "prefill": "prefill",
    "recomputed": "recomputed",
    "decode": "decode",
    "padding": "answer ready, batch not ended",
    "idle": "has a row, nothing computed",
    "s4": "preempted",
}


@dataclass(frozen=True, slots=True)
class Cell:
    """A stretch of a row, in seconds of the picture. padded: share of its token slots. begins: a sequence in this
    row."""

    row: int
    state: Work
    start: float
    end: float
    padded: float = 0.0
    begins: bool = False


def batch_picture(
    title: str,
    runs: Sequence[RowRun],
    waiting: Sequence[tuple[float, float]],
    span: Window,
    steps: Sequence[float] = (),
    width: float = WIDE,
) -> Drawing | None:
    """Draw the batch. waiting: (time, sequences waiting from then on), for the strip above the rows. steps: when each
    began; drawn where there is room."""
    shown = [run for run in runs if run.end > span.start and run.start < span.end]
    if not shown:
        return None
    rows = sorted({run.row for run in shown})
    about = _about(rows, shown)
    rows = rows[:MAX_ROWS]
    height_of_row = max(5.0, min(22.0, 380.0 / len(rows)))
    cells, merged = _cells([run for run in shown if run.row <= rows[-1]], span, len(rows))
    has_queue = any(count for _, count in waiting)
    states = [state for state in Work if any(c.state is state or (state is Work.PADDING and c.padded) for c in cells)]
    keys = [Key(_NAMES[state], CLASSES[state], "area") for state in states]
    keys += [Key("waiting (sequences)", "waiting", "area")] if has_queue else []
    strip = _QUEUE if has_queue else 0
    tall = strip + height_of_row * len(rows)
    frame = Frame(Axis(0.0, span.seconds, "time", "s"), keys, tall + _BELOW, width, label="" if has_queue else "row")
    top = frame.top + strip
    tops = {row: top + index * height_of_row for index, row in enumerate(rows)}
    body = _lanes(frame, tops, height_of_row) + _paths(frame, cells, tops, height_of_row)
    if has_queue:
        body += _queue(frame, waiting, span, top)
    within = [time - span.start for time in steps if span.start <= time <= span.end]
    if 0 < len(within) * _STEP_SPACE <= frame.right - frame.left:
        lines = (f"M{number(frame.at_x(time))} {number(top)}V{number(frame.bottom)}" for time in within)
        body += tag("path", d="".join(lines), class_="steps")
        about += " Fine lines are steps."
    return Drawing(title, about + merged, width, frame.height, frame.around(body), wide=True)


def _about(rows: list[int], runs: Sequence[RowRun]) -> str:
    left_out = f" Of the {len(rows)} rows in use, the first {MAX_ROWS} are shown." if len(rows) > MAX_ROWS else ""
    sequences = len({run.sequence for run in runs})
    return (
        f"Each lane is a row of the batch; {sequences:,} sequences ran in them. Tall: prompts; low: single "
        f"tokens.{left_out}"
    )


def _cells(runs: Sequence[RowRun], span: Window, rows: int) -> tuple[list[Cell], str]:
    """Return cells, one by one or merged, and a sentence for the caption."""
    if len(runs) <= 4000:
        return [_cell(run, span) for run in _starts(runs)], ""
    columns = max(60, min(440, MAX_CELLS // rows))
    width = span.seconds / columns
    said = f" Merged: each stretch of {quantity(width, 's')} shows what its row did for most of it."
    return _merged(runs, span, columns), said


def _starts(runs: Iterable[RowRun]) -> Iterable[tuple[RowRun, bool]]:
    last: dict[int, int] = {}
    for run in runs:
        yield run, last.get(run.row) != run.sequence
        last[run.row] = run.sequence


def _cell(begun: tuple[RowRun, bool], span: Window) -> Cell:
    run, begins = begun
    padded = run.padded / (run.tokens + run.padded) if run.tokens else 0.0
    start = max(run.start, span.start) - span.start
    return Cell(
        run.row, run.state, start, min(run.end, span.end) - span.start, padded, begins and run.start >= span.start
    )


def _merged(runs: Sequence[RowRun], span: Window, columns: int) -> list[Cell]:
    width = span.seconds / columns
    spent: dict[tuple[int, int], dict[Work, float]] = defaultdict(lambda: defaultdict(float))
    for run in runs:
        start, end = max(run.start, span.start) - span.start, min(run.end, span.end) - span.start
        for column in range(int(start / width), min(columns - 1, int(end / width)) + 1):
            inside = min(end, (column + 1) * width) - max(start, column * width)
            if inside > 0:
                spent[run.row, column][run.state] += inside
    cells: list[Cell] = []
    last: tuple[int, int, Work] | None = None
    for (row, column), states in sorted(spent.items(), key=lambda one: one[0]):
        if sum(states.values()) < width / 2:
            continue  # empty for most of it
        state = max(states, key=lambda one: states[one])
        if last == (row, column - 1, state):
            before = cells.pop()
            cells.append(Cell(row, state, before.start, (column + 1) * width))
        else:
            cells.append(Cell(row, state, column * width, (column + 1) * width))
        last = (row, column, state)
    return cells


def _lanes(frame: Frame, tops: dict[int, float], height: float) -> str:
    every = 1 if height >= 13 else 2 if height >= 8 else 4 if height >= 6 else 8
    names = [
        text(frame.left - 6, y + height / 2 + 4, str(row), anchor="end") for row, y in tops.items() if not row % every
    ]
    ground = [rectangle(frame.left, y + 0.5, frame.right - frame.left, height - 1) for y in tops.values()]
    return tag("path", d="".join(ground), class_="area free") + "".join(names)


def _paths(frame: Frame, cells: Sequence[Cell], tops: dict[int, float], height: float) -> str:
    """Draw a path for each state. A sequence's beginning in a row is a fine gap; the padded share of a row's height is
    the padded share of its token slots."""
    gap = min(1.0, height * 0.1)
    paths: dict[str, list[str]] = defaultdict(list)
    for cell in cells:
        x, end = frame.at_x(cell.start), frame.at_x(cell.end)
        x += 0.8 if cell.begins and end - x > 2 else 0.0
        full = (height - gap) * (1.0 if cell.state in _TALL else _LOW)
        y = tops[cell.row] + height - gap / 2 - full
        own = full * (1 - cell.padded)
        paths[CLASSES[cell.state]].append(rectangle(x, y + full - own, end - x, own))
        if cell.padded:
            paths["padding"].append(rectangle(x, y, end - x, full - own))
    order = ("idle", "padding", "decode", "prefill", "recomputed")
    return "".join(tag("path", d="".join(paths[name]), class_=f"area {name}") for name in order if paths[name])


def _queue(frame: Frame, waiting: Sequence[tuple[float, float]], span: Window, bottom: float) -> str:
    """Draw a strip of how many waited."""
    base, ceiling = bottom - 16, bottom - _QUEUE + 4
    peak = max(count for _, count in waiting)
    d = []
    ends = [time for time, _ in waiting[1:]] + [span.end]
    for (time, count), end in zip(waiting, ends, strict=True):
        if count:
            x = frame.at_x(time - span.start)
            height = (base - ceiling) * count / peak
            d.append(rectangle(x, base - height, frame.at_x(end - span.start) - x, height))
    label = text(frame.left - 6, ceiling + 8, f"{peak:,.0f}", anchor="end")
    line = tag("path", d=f"M{frame.left} {base}H{frame.right}", class_="grid")
    return line + tag("path", d="".join(d), class_="area waiting") + label + text(2, bottom - 5, "row", "label")


def request_timelines(
    title: str, about: str, requests: Sequence[tuple[str, Sequence[Segment]]], span: Window
) -> Drawing | None:
    """Draw requests. requests: name and segments of each, in the order of the lanes from the top."""
    if not requests:
        return None
    used = {class_ for _, segments in requests for class_, _, _ in segments}
    keys = [Key(name, class_, "area") for class_, name in _REQUEST_NAMES.items() if class_ in used]
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
