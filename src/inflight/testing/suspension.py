"""Suspension of executors that compute in no time and say how long steps take."""

from __future__ import annotations

from collections.abc import Callable

from msgspec import structs

from inflight.core.types.plan import StepResult
from inflight.core.types.suspension import Suspension


class SuspendedStep:
    """A `Pending` that may be suspended, whose layers take equally long. compute: called at the end, with `seconds`."""

    def __init__(self, seconds: float, layers: int, compute: Callable[[float], StepResult]):
        self._seconds, self._layers, self._compute = seconds, layers, compute
        self._done, self._suspended_at = 0, tuple[int, ...]()
        self._result: StepResult | None = None
        self.suspension: Suspension | None = None

    def advance(self, is_due: Callable[[float], bool]) -> None:
        """Compute the rest, or as many layers as it is not suspended in."""
        began, self.suspension = self._done, None
        while self._done < self._layers - 1:
            self._done += 1
            seconds = self._seconds * (self._done - began) / self._layers
            if is_due(seconds):
                self.suspension = Suspension(self._done, seconds)
                self._suspended_at += (self._done,)
                return
        self.result()

    def result(self) -> StepResult:
        """Return the result; a suspended step goes on to its end."""
        self.suspension = None
        if self._result is None:
            self._result = structs.replace(self._compute(self._seconds), suspended_at=self._suspended_at)
        return self._result


class StepSuspender:
    """Base of such executors: a `Suspender` of their steps."""

    _is_due: Callable[[float], bool] | None = None
    _suspended: SuspendedStep | None = None  # the last step that could be suspended

    def suspend_when(self, is_due: Callable[[float], bool]) -> None:
        self._is_due = is_due

    @property
    def suspension(self) -> Suspension | None:
        return None if self._suspended is None else self._suspended.suspension

    def resume(self) -> None:
        if self._suspended is not None and self._is_due is not None:
            self._suspended.advance(self._is_due)

    def drop_suspended(self) -> None:
        self._suspended = None

    def _begin_suspendable(self, step: SuspendedStep) -> SuspendedStep:
        """Compute a step until it is suspended, or to its end."""
        assert self._is_due is not None, "asked before"
        self._suspended = step
        step.advance(self._is_due)
        return step
