"""Where each number of the turns' accounts stands, in an array of numbers that may be shared between processes.

Knows names and positions; not what the numbers mean for anybody's turn.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Sequence


class Head:
    """Numbers that there are one of.

    HOLDER: one more than the place that has the turn; 0: nobody has. BEGAN: when its turn did. CHARGED: when it was
    last charged for what it computes. IS_OWED: whether its turn was owed to it. OWED: seconds that those who are not
    urgent have credit for. FLOOR: their share. LOOK_AT: from when on the holder looks who else wants the turn.
    REACHED: by class, the virtual time of the last that had a turn.
    """

    HOLDER, BEGAN, CHARGED, IS_OWED, OWED, FLOOR, LOOK_AT, REACHED = range(8)


class Cell:
    """Numbers that each place has. WEIGHT: 0: nobody is there. USED: by class, its virtual time. LEFT: by class, when
    it last wanted or had the turn; the others as the rule's `Place` has them."""

    WEIGHT, WANTS, URGENT, RETURNS_AT, SLICE, USED, _, LEFT = range(8)


_HEAD, _WIDTH = 9, 9  # what there is one of by class (not urgent, urgent) takes two


class Cells:
    def __init__(self, values: array[float] | memoryview[float]):
        """values: doubles, `numbers(places)` of them, all 0 where nobody has used them yet."""
        self._values = values

    @staticmethod
    def numbers(places: int) -> int:
        return _HEAD + places * _WIDTH

    @property
    def holder(self) -> int | None:
        """Who has the turn."""
        place = int(self._values[Head.HOLDER]) - 1
        return None if place < 0 else place

    def head(self, name: int) -> float:
        return self._values[name]

    def set_head(self, name: int, value: float) -> None:
        self._values[name] = value

    def of(self, place: int, name: int) -> float:
        return self._values[_HEAD + place * _WIDTH + name]

    def set(self, place: int, name: int, value: float) -> None:
        self._values[_HEAD + place * _WIDTH + name] = value

    def column(self, name: int) -> Sequence[float]:
        """Of all places."""
        return self._values[_HEAD + name :: _WIDTH].tolist()

    def reset(self, place: int) -> None:
        """Nobody is there, and nobody was for long."""
        self.set(place, Cell.WANTS, 0)
        for name in range(_WIDTH):
            self.set(place, name, 0)
        self.set(place, Cell.LEFT, -math.inf)
        self.set(place, Cell.LEFT + 1, -math.inf)
