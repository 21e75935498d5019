"""The batch's rows: who holds which, and what was computed there, step by step; as runs and points of a frame.

Knows steps and rows; not whose sequences these are. Where a frame has many steps, several in a row are drawn as one,
and a row then shows the most notable of what it did: a prompt before single tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from inflight.live.frames import WORKS, Run, StepPoint
from inflight.live.step_facts import StepFacts
from inflight.records.computed import Work, computed

MOST_POINTS = 16  # of a frame
_GAP = 0.25  # of a stretch's length, that may lie between two of a run

_PLACE = {work: place for place, work in enumerate(WORKS)}
_PREFILL, _DECODE, _RECOMPUTE, _PADDING, _IDLE = (
    _PLACE[work] for work in (Work.PREFILL, Work.DECODE, Work.RECOMPUTE, Work.PADDING, Work.IDLE)
)
_NOTABLE = {_PREFILL: 4, _RECOMPUTE: 3, _DECODE: 2, _PADDING: 1, _IDLE: 0}


class Cell(NamedTuple):
    sequence: int
    work: int
    tokens: int


class _Step(NamedTuple):
    point: StepPoint
    cells: dict[int, Cell]  # by row


class _Held:
    """A row that is held. most: tokens of the sequence that were ever computed. decode: its cell while it decodes, made
    once, since a batch has hundreds of them a step."""

    __slots__ = ("decode", "most", "prompt_tokens", "sequence")

    def __init__(self, sequence: int, prompt_tokens: int, most: int):
        self.sequence, self.prompt_tokens, self.most = sequence, prompt_tokens, most
        self.decode = Cell(sequence, _DECODE, 1)


class _Open:
    __slots__ = ("end", "row", "sequence", "start", "tokens", "work")

    def __init__(self, row: int, cell: Cell, start: float, end: float):
        self.row, self.sequence, self.work = row, cell.sequence, cell.work
        self.start, self.end, self.tokens = start, end, cell.tokens


class BatchRows:
    def __init__(self) -> None:
        self._held: dict[int, _Held] = {}  # by row
        self._left: dict[int, int] = {}  # sequences that are alive and have no row → most tokens ever computed
        self._steps: list[_Step] = []  # of the frame so far
        self._before = float("-inf")  # when the last step ended

    def seed(self, row: int, sequence: int, prompt_tokens: int, computed: int) -> None:
        """It has the row already."""
        self._held[row] = _Held(sequence, prompt_tokens, computed)

    def seen(self, sequence: int, computed: int) -> None:
        """It waits, and was computed so far before."""
        self._left[sequence] = computed

    def forget(self, sequence: int) -> None:
        """It has ended. Its row is given up by the next plan."""
        self._left.pop(sequence, None)

    def step(self, facts: StepFacts) -> list[int]:
        """The sequences that lost their rows before it."""
        left = []
        for row in facts.freed_rows:
            if (held := self._held.pop(row, None)) is not None:
                left.append(held.sequence)
                self._left[held.sequence] = held.most
        began = max(facts.planned, self._before)
        self._before = facts.committed
        self._steps.append(self._drawn(facts, began))
        return left

    def _drawn(self, facts: StepFacts, began: float) -> _Step:
        cells: dict[int, Cell] = {}
        rows, new_requests, in_vain = self._held, facts.new_requests, facts.in_vain
        prompt = decode = recomputed = 0
        for chunk in facts.chunks:
            sequence, row, start, length = chunk.sequence_id, chunk.row, chunk.start, chunk.length
            held = rows.get(row)
            if row in new_requests or held is None or held.sequence != sequence:
                held = rows[row] = _Held(sequence, new_requests.get(row, 0), self._left.pop(sequence, 0))
            if length == 1 and start >= held.most and start >= held.prompt_tokens:  # nearly all of them
                held.most = start + 1
                decode += 1
                cells[row] = held.decode
                continue
            wrong = in_vain.get(sequence, 0)
            done = computed(held.most, start, length, wrong, held.prompt_tokens)
            held.most = max(held.most, start + length - wrong)
            recomputed += done.repeated
            if done.work is Work.DECODE:
                decode += done.first - wrong
            else:
                prompt += done.first
            cells[row] = Cell(sequence, _PLACE[done.work], length)
        if len(cells) < len(rows):
            idle = _PADDING if facts.padding else _IDLE
            for row, held in rows.items():
                if row not in cells:
                    cells[row] = Cell(held.sequence, idle, 0)
        rejected = sum(in_vain.values()) if in_vain else 0
        times = (round(began, 5), round(facts.committed, 5), round(facts.seconds, 6), round(facts.predicted, 6))
        return _Step(StepPoint(*times, 1, prompt, decode, recomputed, sum(facts.padding), rejected), cells)

    def end_frame(self) -> tuple[list[StepPoint], list[Run]]:
        steps, self._steps = self._steps, []
        together = max(1, -(-len(steps) // MOST_POINTS))
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
    """Of each row, steps in which it did the same for the same sequence are one."""
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
