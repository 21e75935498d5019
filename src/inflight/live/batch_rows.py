"""The batch's rows: who holds which, and what was computed there, step by step; as runs and points of a frame.

Knows steps and rows; not whose sequences these are. Where a frame has many steps, several in a row are drawn as one,
and a row then shows the most notable of what it did: a prompt before single tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from inflight.live.frames import WORKS, Run, StepPoint
from inflight.live.step_facts import StepFacts
from inflight.records.computed import ComputedTokens, Work

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


class _Open:
    __slots__ = ("end", "row", "sequence", "start", "tokens", "work")

    def __init__(self, row: int, cell: Cell, start: float, end: float):
        self.row, self.sequence, self.work = row, cell.sequence, cell.work
        self.start, self.end, self.tokens = start, end, cell.tokens


class BatchRows:
    def __init__(self) -> None:
        self._held: dict[int, tuple[int, int]] = {}  # row → sequence, tokens of its prompt
        self._computed = ComputedTokens()
        self._steps: list[_Step] = []  # of the frame so far
        self._before = float("-inf")  # when the last step ended

    @property
    def held(self) -> dict[int, int]:
        """Row → sequence."""
        return {row: sequence for row, (sequence, _) in self._held.items()}

    def seed(self, row: int, sequence: int, prompt_tokens: int, computed: int) -> None:
        """It has the row already."""
        self._held[row] = sequence, prompt_tokens
        self._computed.seen(sequence, computed)

    def seen(self, sequence: int, computed: int) -> None:
        """It waits, and was computed so far before."""
        self._computed.seen(sequence, computed)

    def forget(self, sequence: int) -> None:
        """It has ended. Its row is given up by the next plan."""
        self._computed.forget(sequence)

    def step(self, facts: StepFacts) -> list[int]:
        """The sequences that lost their rows before it."""
        left = [found[0] for row in facts.freed_rows if (found := self._held.pop(row, None)) is not None]
        for chunk in facts.chunks:
            if (prompt_tokens := facts.new_rows.get(chunk.row)) is not None:
                self._held[chunk.row] = chunk.sequence, prompt_tokens
        began = max(facts.planned, self._before)
        self._before = facts.committed
        self._steps.append(self._drawn(facts, began))
        return left

    def _drawn(self, facts: StepFacts, began: float) -> _Step:
        cells: dict[int, Cell] = {}
        prompt = decode = recomputed = rejected = 0
        for sequence, row, start, length, in_vain in facts.chunks:
            held = self._held.get(row)
            prompt_tokens = held[1] if held is not None else 0  # a ring that was full may have lost its beginning
            work, first, repeated = self._computed.chunk(sequence, start, length, in_vain, prompt_tokens)
            recomputed += repeated
            rejected += in_vain
            if work is Work.DECODE:
                decode += first - in_vain
            else:
                prompt += first
            cells[row] = Cell(sequence, _PLACE[work], length)
        if len(cells) < len(self._held):
            idle = _PADDING if facts.padding else _IDLE
            for row, (sequence, _) in self._held.items():
                if row not in cells:
                    cells[row] = Cell(sequence, idle, 0)
        padding = sum(facts.padding)
        times = (began, facts.committed, facts.seconds, facts.predicted)
        return _Step(StepPoint(*times, 1, prompt, decode, recomputed, padding, rejected), cells)

    def end_frame(self) -> tuple[list[StepPoint], list[Run]]:
        steps, self._steps = self._steps, []
        together = max(1, -(-len(steps) // MOST_POINTS))
        drawn = steps
        if together > 1:
            drawn = [_joined(steps[start : start + together]) for start in range(0, len(steps), together)]
        return [one.point for one in drawn], _runs(drawn)


def _joined(steps: Sequence[_Step]) -> _Step:
    cells: dict[int, Cell] = {}
    for one in steps:
        for row, cell in one.cells.items():
            before = cells.get(row)
            if before is None:
                cells[row] = cell
                continue
            is_same = before.sequence == cell.sequence
            work = max(before.work, cell.work, key=_NOTABLE.__getitem__) if is_same else cell.work
            cells[row] = Cell(cell.sequence, work, (before.tokens if is_same else 0) + cell.tokens)
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
    return [Run(one.row, one.sequence, one.work, _short(one.start), _short(one.end), one.tokens) for one in ended]


def _short(time: float) -> float:
    return round(time, 4)
