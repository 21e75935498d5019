"""Suspension: a step rests between two layers, a smaller one is computed, and it goes on where it was.

A short prompt that arrives while a long one is computed need not wait for the step's end (FlowPrefill, arXiv
2602.16603). Nothing is computed twice and no bit changes: the suspended pass keeps its activations, and a smaller step,
an *interim step*, has others. One step at a time is suspended, and an interim step never is.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from msgspec import Struct

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
