"""Turns: which sequences' drafts are looked at in a step.

A sequence for which drafting pays has its turn in every step. Where it did not pay the next turn is in the next step
whose number 1, 2, 4, … divides; a heap holds these, so that whoever pauses costs a step nothing, and pauses end
together: a step in which anybody is asked takes time of its own. Knows numbers of sequences and steps.
"""

from __future__ import annotations

import math
from heapq import heapify, heappop, heappush

LONGEST = 256  # steps between two turns
NEWCOMERS = 16  # steps until the first turn of a newcomer at most
SOON = 4  # steps until the next turn of one of whom nothing was found out


class Turns:
    def __init__(self) -> None:
        self.due: set[int] = set()  # whose turn it is, until `pauses`
        self._pauses: dict[int, int] = {}  # of everybody: steps of the last pause; 0: none
        self._heap: list[tuple[int, int]] = []  # (step, number), of those that pause
        self._usual = 0  # steps of the pause that was made last; 0: drafts have paid since

    def __contains__(self, number: int) -> bool:
        return number in self._pauses

    @property
    def next_step(self) -> float:
        """In which somebody's pause ends."""
        return self._heap[0][0] if self._heap else math.inf

    def begin(self, number: int, step: int) -> None:
        """A newcomer, whose turn it is at once, or, where drafts do not pay for the others, somewhat later. step: the
        last that was computed."""
        pause = self._pauses[number] = min(self._usual // 2, NEWCOMERS)
        if pause:
            self._until(number, step, pause)
        else:
            self.due.add(number)

    def at(self, step: int) -> set[int]:
        """Whose turn it is in this step."""
        heap = self._heap
        while heap and heap[0][0] <= step:
            number = heappop(heap)[1]
            if number in self._pauses:
                self.due.add(number)
        return self.due

    def pays(self, number: int) -> None:
        """Drafts were right: the next pause is a short one."""
        self._usual = 0
        if number in self._pauses:
            self._pauses[number] = 0

    def pauses(self, number: int, step: int, most: int = LONGEST) -> None:
        """It did not pay in this step: twice as long a pause as before, while that was shorter than `most`."""
        before = self._pauses[number]
        pause = self._pauses[number] = self._usual = min(2 * before if before < most else before, LONGEST) or 1
        self.due.discard(number)
        self._until(number, step, pause)

    def again(self, number: int, step: int) -> None:
        """Nothing was found out in this step: it has another turn soon, and its pauses are as long as they were."""
        self.due.discard(number)
        self._until(number, step, SOON)

    def _until(self, number: int, step: int, pause: int) -> None:
        """At the next multiple of the pause: whoever pauses as long has its turn in the same step."""
        heappush(self._heap, ((step // pause + 1) * pause, number))

    def everybody(self) -> None:
        """What held for those that pause may not hold any more."""
        self.due.update(self._pauses)
        self._pauses = dict.fromkeys(self._pauses, 0)
        self._heap.clear()
        self._usual = 0

    def end(self, number: int) -> None:
        self.due.discard(number)
        if self._pauses.pop(number, 0) and len(self._heap) > 2 * len(self._pauses) + 64:
            self._heap = [one for one in self._heap if one[1] in self._pauses]
            heapify(self._heap)
