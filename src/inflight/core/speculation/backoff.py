"""Back-off: in which steps each sequence may be drafted for.

A sequence whose drafts are right may be drafted for in every step. One for which drafting brought nothing pauses for 1,
2, 4, … steps, until asking about it takes a small share of the time. A newcomer begins with half the pause that was
given last, so that a load for which drafting does not pay costs nearly nothing; and since a drafter reads a sequence
when it is first asked about, first questions pause in the same way. Pauses end at multiples of their length, so that
few steps have any work with drafts.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping

from msgspec import Struct

MAX_PAUSE = 256  # steps
SHORT_PAUSE = 8  # steps; a right draft earns a sequence one more pause that is no longer
MAX_SHORT_PAUSES = 8  # that a sequence may have earned: text that repeats goes on repeating after a gap
MAX_FIRST_PAUSE = 16  # steps before the first question about a newcomer
NEW_PAUSE_DIVISOR = 4  # of the pause between first questions, for each right draft: one may be right by chance
NO_SEQUENCES: frozenset[int] = frozenset()


class _Pause(Struct):
    """Pauses of one sequence.

    Attributes:
        until: First step in which it may be drafted for.
        steps: Length of its last pause; 0: its drafts pay, or none was tried.
        earned: Short pauses that it may have before longer ones.
        is_new: Whether it was never asked about.
    """

    until: int
    steps: int
    earned: int = 0
    is_new: bool = True


class DraftBackoff:
    def __init__(self) -> None:
        self._pauses: dict[int, _Pause] = {}  # by sequence
        self._last_pause = 0  # steps that any sequence was given last
        self._new_pause = self._new_until = 0  # steps; first step in which new sequences may be due
        self._first_due: float = math.inf  # no sequence is due before

    def begin(self, number: int, step: int) -> None:
        """Take in a sequence. step: the last that was computed."""
        steps = self._last_pause // 2
        self._pauses[number] = _Pause(step + 1 + min(steps, MAX_FIRST_PAUSE), steps)
        self._update()

    def end(self, number: int) -> None:
        """Forget a sequence."""
        if self._pauses.pop(number, None) is not None:
            self._update()

    def due(self, step: int) -> Collection[int]:
        """Return the sequences that may be drafted for in this step."""
        if step < self._first_due:
            return NO_SEQUENCES
        rests = step < self._new_until
        return {number for number, one in self._pauses.items() if one.until <= step and not (rests and one.is_new)}

    def is_new(self, number: int) -> bool:
        """Return whether a sequence was never asked about."""
        return self._pauses[number].is_new

    def asked(self, numbers: Iterable[int], step: int, vain_steps: float) -> None:
        """Note that these are not new any more.

        Args:
            numbers: Sequences that were asked about.
            step: The step that is planned.
            vain_steps: Steps of which asking in vain about new ones is a small share.
        """
        for number in numbers:
            self._pauses[number].is_new = False
        if vain_steps:
            self._new_pause = min(2 * self._new_pause or 1, math.ceil(vain_steps))
            self._new_until = step + self._new_pause
        self._update()

    def right(self, drafts: Mapping[int, int]) -> None:
        """Note that these sequences had so many right drafts each."""
        for number, count in drafts.items():
            one = self._pauses[number]
            one.steps, one.earned = 0, min(MAX_SHORT_PAUSES, one.earned + count)
            self._last_pause = self._new_until = 0
            self._new_pause //= NEW_PAUSE_DIVISOR
        self._update()

    def pause(self, numbers: Iterable[int], step: int, max_pause: int = MAX_PAUSE) -> None:
        """Note that drafting for these brought nothing in this step: each pauses for twice as long as before."""
        for number in numbers:
            one = self._pauses[number]
            steps = 2 * one.steps or 1
            if steps > SHORT_PAUSE and one.earned:
                one.earned -= 1
                steps = SHORT_PAUSE
            self._last_pause = one.steps = min(steps, max_pause)
            one.until = (step // one.steps + 1) * one.steps
        self._update()

    def _update(self) -> None:
        new = self._new_until
        steps = [max(one.until, new) if one.is_new else one.until for one in self._pauses.values()]
        self._first_due = min(steps, default=math.inf)
