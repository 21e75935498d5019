"""Whether steps are being computed, for work beside them that uses the same cores: it rests meanwhile.

The runner reports when a step begins and ends; adapter loading and reads of a folder of blocks query it, on threads of
their own.
"""

from __future__ import annotations

import math
import threading
import time

_BETWEEN_STEPS = 0.25  # seconds from a step's end to the beginning of the next, at most, while they follow one another


class StepActivity:
    def __init__(self) -> None:
        self._is_computing, self._ended = False, -math.inf
        self._between = threading.Event()  # no step is being computed
        self._between.set()

    @property
    def is_going_on(self) -> bool:
        """Whether steps are computed, one after the other."""
        return self._is_computing or time.perf_counter() - self._ended < _BETWEEN_STEPS

    def began(self, computes: bool) -> None:
        """Note that a step begins. computes: any tokens; where it does not, its transfers have the cores alone."""
        self._is_computing = computes
        if computes:
            self._between.clear()
        else:
            self._ended = -math.inf

    def ended(self) -> None:
        if self._is_computing:
            self._is_computing, self._ended = False, time.perf_counter()
            self._between.set()

    def rest(self, worked: float, times: float, longest: float) -> None:
        """Sleep for `times` as long as the work took, at most `longest` seconds, while steps are computed. A step's
        next token is then late by no more than a small part of a step."""
        if self.is_going_on:
            time.sleep(min(longest, times * worked))

    def await_gap(self, worked: float, times: float, longest: float) -> None:
        """Sleep as `rest` does, for work in small pieces, but no longer than until the current step ends. While the
        next step is planned a core is idle, and a piece that is done then delays no step."""
        if self._is_computing:
            self._between.wait(min(longest, times * worked))
