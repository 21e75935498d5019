"""Stages of a plan: their progress, as n of m, and the time that is left."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping

from msgspec import Struct

Progress = Callable[[str], None]

_STAGE = re.compile(r"(?P<text>\d+ of \d+: .*?)(?:; about (?P<left>[\d,]+) s left)?")


class Stage(Struct, frozen=True):
    """text: which of how many, and its name. seconds_left: of all that are left when it begins; None: not known."""

    text: str
    seconds_left: float | None


def stage_of(sentence: str) -> Stage | None:
    """Return the stage whose begin a progress message reports; None where it reports something else."""
    found = _STAGE.fullmatch(sentence)
    if found is None:
        return None
    return Stage(found["text"], None if found["left"] is None else float(found["left"].replace(",", "")))


def quiet(_: str) -> None:
    """Discard a progress message."""


class Stages:
    """Stages whose work is known in usual trials, one after another or several at a time."""

    def __init__(
        self,
        work: Mapping[str, float],
        progress: Progress,
        *,
        at_once: int = 1,
        seconds_per_trial: float | None = None,
        now: Callable[[], float] = time.monotonic,
    ):
        """Begin.

        Args:
            work: Stage → its work, in usual trials.
            progress: Called with sentences.
            at_once: Stages that are computed at the same time.
            seconds_per_trial: As known beforehand; None: not known before the first stage ends.
            now: The clock.
        """
        self._left, self._progress = dict(work), progress
        self._extra: set[str] = set()  # that were not known: they count as the one before
        self._number, self._done, self._at_once = len(work), 0.0, at_once
        self._known, self._now, self._first = seconds_per_trial, now, now()

    @property
    def seconds_per_trial(self) -> float | None:
        """Return the seconds of a usual trial so far; None where no stage has ended."""
        return (self._now() - self._first) * self._at_once / self._done if self._done else self._known

    def begin(self, name: str, work: float = 1.0) -> None:
        """Report that a stage begins. work: of one that was not known."""
        if name not in self._left:
            self._left[name] = work
            self._extra.add(name)
        known = len(self._left.keys() - self._extra)
        self._report(name, max(1, self._number - known + (name not in self._extra)))

    def skip(self, name: str) -> None:
        """Leave a stage out, if it was to come; it counts as done, so that the number of all stays."""
        self._left.pop(name, None)

    def end(self, name: str, *, reports: bool = False) -> None:
        """Note that a stage ended. reports: whether to say so, where stages do not begin one by one."""
        self._done += self._left.pop(name)
        if reports:
            self._report(name, self._number - len(self._left))

    def _report(self, name: str, number: int) -> None:
        each = self.seconds_per_trial
        left = None if each is None else sum(self._left.values()) * each / self._at_once
        about = f"; about {left:,.0f} s left" if left is not None and left >= 1 else ""
        self._progress(f"{number} of {self._number}: {name}{about}")
