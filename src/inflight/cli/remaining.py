"""How much of several runs is left: said before each of them, with about how long the rest will take.

Knows numbers of runs and seconds, those that were known before and those that runs took; not what a run is.
"""

from __future__ import annotations

import time
from collections.abc import Callable


class Remaining:
    def __init__(
        self,
        runs: int,
        seconds: float | None,
        report: Callable[[str], None],
        now: Callable[[], float] = time.monotonic,
    ):
        """runs: in all. seconds: that all of them take at least, where requests come at their own times; None: not
        known before the first."""
        self._runs, self._known, self._report, self._now = runs, seconds, report, now
        self._begun = 0
        self._first = now()
        how_long = "how long they take, the first tells" if seconds is None else f"about {duration(seconds)}"
        if runs > 1:
            report(f"{runs:,} runs: {how_long}.")

    def begin(self, what: str) -> None:
        """A run begins. what: which it is, in words."""
        now, done = self._now(), self._begun
        self._begun += 1
        if not done:
            self._first, left = now, self._known
        else:
            left = (now - self._first) / done * (self._runs - done)
        about = "" if left is None else f"; about {duration(left)} left"
        self._report(f"Run {self._begun:,} of {self._runs:,}: {what}{about}")


def duration(seconds: float) -> str:
    """In words, to the second below two minutes, to ten seconds below an hour."""
    whole = round(seconds)
    if whole < 120:
        return f"{whole} s"
    minutes, rest = divmod(round(whole / 10) * 10, 60)
    if minutes < 60:
        return f"{minutes} min" + (f" {rest} s" if rest else "")
    return f"{minutes // 60} h" + (f" {minutes % 60} min" if minutes % 60 else "")
