"""The suspended step of an engine loop: when the step in flight is suspended, goes on, and how long it was computed."""

from __future__ import annotations

import math
from contextlib import AbstractContextManager

from inflight.core.scheduling.scheduler import Scheduler
from inflight.core.types.suspension import Suspender, SuspensionStats
from inflight.engine.clock import Clock


class SuspendedSteps:
    """Suspends steps for the interim steps of a scheduler (`core.types.suspension`).

    Attributes:
        until: When the loop's caller has more to do; a step that may be suspended is suspended then.
    """

    def __init__(self, suspender: Suspender | None, scheduler: Scheduler, clock: Clock):
        """suspender: Suspends the executor's steps; None: no step is suspended."""
        self.until = math.inf
        self._suspender, self._scheduler, self._clock = suspender, scheduler, clock
        self._resumed = 0.0  # when the step in flight began or went on
        self._passed = 0.0  # seconds of it before that
        self._suspended_at = 0.0
        self._stats = SuspensionStats()
        if suspender is not None:
            suspender.suspend_when(self._is_due)

    @property
    def rests(self) -> bool:
        return self._suspender is not None and self._suspender.suspension is not None

    @property
    def has_interim(self) -> bool:
        """Whether an interim step may be made."""
        return self._scheduler.interim.due

    def stats(self) -> SuspensionStats | None:
        """Return counts of the suspensions that have ended; None where no step is ever suspended."""
        return None if self._suspender is None else self._stats

    def begin(self, now: float) -> None:
        self._resumed, self._passed = now, 0.0

    def submitted(self) -> None:
        """Let the seconds of a step pass that was suspended as it was submitted."""
        if self._suspender is not None and (suspension := self._suspender.suspension) is not None:
            self._passed += suspension.seconds
            self._clock.passed(suspension.seconds)
            self._suspended_at = self._clock.now()

    def go_on(self, now: float, unlocked: AbstractContextManager[object]) -> None:
        """Go on with the suspended step, which may be suspended again."""
        assert self._suspender is not None, "a step rests"
        self._resumed = now
        seconds = self._stats.seconds + now - self._suspended_at
        self._stats = SuspensionStats(self._stats.suspensions + 1, seconds)
        with unlocked:
            self._suspender.resume()
        self.submitted()

    def seconds_left(self, seconds: float) -> float:
        """Return those seconds of a step of so many that have not passed at its suspensions."""
        return max(0.0, seconds - self._passed)

    def drop(self) -> None:
        """Forget the suspended step, if there is one."""
        if self._suspender is not None:
            self._suspender.drop_suspended()

    def _is_due(self, seconds: float) -> bool:
        """Return whether a step is to be suspended so many seconds after it began or went on. Asked between its layers,
        while other threads may add requests."""
        return self._scheduler.interim.due or self._resumed + seconds >= self.until
