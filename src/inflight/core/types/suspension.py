"""Suspension: a step rests between two layers, a smaller one is computed, and it goes on where it was.

A short prompt that arrives while a long one is computed need not wait for the step's end (FlowPrefill, arXiv
2602.16603). Nothing is computed twice and no bit changes: the suspended pass keeps its activations, and a smaller step,
an *interim step*, has others. One step at a time is suspended, and an interim step never is.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from msgspec import Struct, structs

from inflight.core.types.plan import StepResult

MIN_SUSPENDED = 32  # prompt tokens of a step from which it is suspended: a shorter one ends soon


class Suspension(Struct, frozen=True):
    """State of a suspended step.

    Attributes:
        layers: Computed so far, of all of its passes.
        seconds: Computed since it began or went on.
    """

    layers: int
    seconds: float


class SuspensionStats(Struct, frozen=True):
    """Counts since the engine began.

    Attributes:
        suspensions: Times that a step was suspended; one step may be suspended several times.
        seconds: For which steps rested.
    """

    suspensions: int = 0
    seconds: float = 0.0


class Suspender(Protocol):
    """An executor that computes steps in `submit`, and can suspend them."""

    def suspend_when(self, is_due: Callable[[float], bool]) -> None:
        """From now on ask `is_due` between two layers of a step whose plan allows it (`may_suspend`), in the thread
        that computes, with the seconds computed since the step began or went on; where it is, suspend the step."""

    @property
    def suspension(self) -> Suspension | None:
        """The suspended step's; None: none is suspended, and the step submitted last is computed."""

    def resume(self) -> None:
        """Go on with the suspended step, which may be suspended again. Its `Pending.result` does so to the end."""

    def drop_suspended(self) -> None:
        """Forget the suspended step, if there is one; its rows are freed by the next plan."""


class SuspendedStep:
    """A step of an executor that computes in no time and says how long steps take: a `Pending` that may be suspended.

    Its layers take equally long, and `compute` is called at its end with its seconds.
    """

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
    """Base of executors that compute in no time: a `Suspender` of their steps."""

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
