"""Whether steps are being computed, for work beside them that uses the same cores: it rests meanwhile.

The runner tells when a step begins and ends; whoever loads adapters or reads a folder of blocks asks, on threads of
their own. Knows times; nothing of what a step computes, or of the work.
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
        """A step did. computes: any tokens; where it does not, whatever it begins beside it has the cores alone."""
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
        """After so many seconds of work: so many times as long, and no longer than `longest` seconds, while steps are
        computed. So nobody's next token is late by more than a small part of a step."""
        if self.is_going_on:
            time.sleep(min(longest, times * worked))

    def await_gap(self, worked: float, times: float, longest: float) -> None:
        """As `rest`, for work in small pieces: until the step that is being computed has ended, if that is sooner.
        While the next one is planned a core has nothing to do, and a piece that is done then delays nobody."""
        if self._is_computing:
            self._between.wait(min(longest, times * worked))
