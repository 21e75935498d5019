"""Draw the rows of the batch (its request slots) as runs and step points of a frame.

A frame with many steps draws several consecutive ones as one. A row then shows the most notable kind of work: a prompt
before single tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from inflight.live.frames import WORKS, Run, StepPoint
from inflight.live.step_facts import StepFacts
from inflight.records.computed import Work, computed

MAX_POINTS = 16  # of a frame
_GAP = 0.25  # longest pause within a run, as a share of the next step's length

_INDEX = {work: index for index, work in enumerate(WORKS)}
_PREFILL, _DECODE, _RECOMPUTE, _PADDING, _IDLE = (
    _INDEX[work] for work in (Work.PREFILL, Work.DECODE, Work.RECOMPUTE, Work.PADDING, Work.IDLE)
)
_NOTABLE = {_PREFILL: 4, _RECOMPUTE: 3, _DECODE: 2, _PADDING: 1, _IDLE: 0}


class Cell(NamedTuple):
    sequence: int
    work: int
    tokens: int


class _Step(NamedTuple):
    point: StepPoint
    cells: dict[int, Cell]  # by row


class _Row:
    """A row in use.

    Attributes:
        max_computed: Highest number of the sequence's tokens that were ever computed.
        decode: Its cell while it decodes, made once: a batch has hundreds of them a step.
    """

    __slots__ = ("decode", "max_computed", "prompt_tokens", "sequence")

    def __init__(self, sequence: int, prompt_tokens: int, max_computed: int):
        self.sequence, self.prompt_tokens, self.max_computed = sequence, prompt_tokens, max_computed
        self.decode = Cell(sequence, _DECODE, 1)


class _Open:
    __slots__ = ("end", "row", "sequence", "start", "tokens", "work")

    def __init__(self, row: int, cell: Cell, start: float, end: float):
        self.row, self.sequence, self.work = row, cell.sequence, cell.work
        self.start, self.end, self.tokens = start, end, cell.tokens


class BatchRows:
    """The rows in use, and the steps of the current frame."""

    def __init__(self) -> None:
        self._rows: dict[int, _Row] = {}
        self._waiting: dict[int, int] = {}  # sequences without a row → highest number of tokens ever computed
        self._steps: list[_Step] = []  # of the frame so far
        self._before = float("-inf")  # when the last step ended

    def seed(self, row: int, sequence: int, prompt_tokens: int, computed: int) -> None:
        """Add a sequence that has the row before the first step."""
        self._rows[row] = _Row(sequence, prompt_tokens, computed)

    def seed_waiting(self, sequence: int, computed: int) -> None:
        """Add a sequence that waits before the first step. computed: its tokens computed before."""
        self._waiting[sequence] = computed

    def forget(self, sequence: int) -> None:
        """Remove a sequence that has ended. The next plan frees its row."""
        self._waiting.pop(sequence, None)

    def step(self, facts: StepFacts) -> list[int]:
        """Draw a step; return the sequences that lost their rows before it."""
        preempted = []
        for index in facts.freed_rows:
            if (row := self._rows.pop(index, None)) is not None:
                preempted.append(row.sequence)
                self._waiting[row.sequence] = row.max_computed
        began = max(facts.planned, self._before)
        self._before = facts.committed
        self._steps.append(self._draw(facts, began))
        return preempted

    def _draw(self, facts: StepFacts, began: float) -> _Step:
        cells: dict[int, Cell] = {}
        rows, new_requests, rejected_of = self._rows, facts.new_requests, facts.rejected
        prompt = decode = recomputed = 0
        for chunk in facts.chunks:
            sequence, index, start, length = chunk.sequence_id, chunk.row, chunk.start, chunk.length
            row = rows.get(index)
            if index in new_requests or row is None or row.sequence != sequence:
                row = rows[index] = _Row(sequence, new_requests.get(index, 0), self._waiting.pop(sequence, 0))
            if length == 1 and start >= row.max_computed and start >= row.prompt_tokens:  # nearly all chunks
                row.max_computed = start + 1
                decode += 1
                cells[index] = row.decode
                continue
            wrong = rejected_of.get(sequence, 0)
            done = computed(row.max_computed, start, length, wrong, row.prompt_tokens)
            row.max_computed = max(row.max_computed, start + length - wrong)
            recomputed += done.repeated
            if done.work is Work.DECODE:
                decode += done.first - wrong
            else:
                prompt += done.first
            cells[index] = Cell(sequence, _INDEX[done.work], length)
        if len(cells) < len(rows):
            idle = _PADDING if facts.padding else _IDLE
            for index, row in rows.items():
                if index not in cells:
                    cells[index] = Cell(row.sequence, idle, 0)
        rejected = sum(rejected_of.values()) if rejected_of else 0
        times = (round(began, 5), round(facts.committed, 5), round(facts.seconds, 6), round(facts.predicted, 6))
        return _Step(StepPoint(*times, 1, prompt, decode, recomputed, sum(facts.padding), rejected), cells)

    def end_frame(self) -> tuple[list[StepPoint], list[Run]]:
        """Return the points and runs of the frame's steps, and begin the next frame."""
        steps, self._steps = self._steps, []
        together = max(1, -(-len(steps) // MAX_POINTS))
        drawn = steps
        if together > 1:
            drawn = [_joined(steps[start : start + together]) for start in range(0, len(steps), together)]
        return [one.point for one in drawn], _runs(drawn)


def _joined(steps: Sequence[_Step]) -> _Step:
    cells = dict(steps[0].cells)
    for one in steps[1:]:
        for row, cell in one.cells.items():
            before = cells.get(row)
            if before is None or before.sequence != cell.sequence:
                cells[row] = cell
            else:
                notable = before.work if _NOTABLE[before.work] >= _NOTABLE[cell.work] else cell.work
                cells[row] = Cell(cell.sequence, notable, before.tokens + cell.tokens)
    points = [one.point for one in steps]
    counts = (
        sum(getattr(one, name) for one in points)
        for name in ("steps", "prompt", "decode", "recomputed", "padding", "rejected")
    )
    seconds, predicted = (sum(getattr(one, name) for one in points) for name in ("seconds", "predicted"))
    if not all(one.predicted for one in points):
        predicted = 0.0
    return _Step(StepPoint(points[0].start, points[-1].end, seconds, predicted, *counts), cells)


def _runs(steps: Sequence[_Step]) -> list[Run]:
    """Join consecutive steps in which a row did the same work for the same sequence."""
    ended: list[_Open] = []
    last: dict[int, _Open] = {}
    for point, cells in steps:
        gap = _GAP * (point.end - point.start)
        for row, cell in cells.items():
            run = last.get(row)
            if (
                run is not None
                and run.sequence == cell.sequence
                and run.work == cell.work
                and point.start - run.end <= gap
            ):
                run.end = point.end
                run.tokens += cell.tokens
            else:
                run = last[row] = _Open(row, cell, point.start, point.end)
                ended.append(run)
    return [Run(one.row, one.sequence, one.work, one.start, one.end, one.tokens) for one in ended]
