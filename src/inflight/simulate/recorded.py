"""Recorded steps as a step model: what a record says that each step took, in its order.

For a run that repeats a recorded one. Where the run leaves the record, or outlives it, another model goes on, and the
sentence of `extrapolates` says at which step.
"""

from __future__ import annotations

from collections.abc import Sequence

from inflight.core.types.features import Features
from inflight.simulate.latency import StepModel
from inflight.simulate.steps import Step


class RecordedModel:
    def __init__(self, steps: Sequence[Step], beyond: StepModel):
        """beyond: for steps that the record does not hold."""
        self._steps = steps
        self._beyond = beyond
        self._next = 0
        self._left: str | None = None

    @property
    def name(self) -> str:
        return f"{len(self._steps):,} recorded steps"

    def seconds(self, held: Features) -> float:
        place, self._next = self._next, self._next + 1
        if self._left is None and place >= len(self._steps):
            self._left = f"The run has more than the record's {len(self._steps):,} steps; {self._beyond.name} goes on."
        elif self._left is None and self._steps[place].held != held:
            self._left = (
                f"Step {place} holds {held.tokens} tokens of {held.rows} sequences, the record's "
                f"{self._steps[place].held.tokens} of {self._steps[place].held.rows}: from there {self._beyond.name} "
                "goes on."
            )
        return self._steps[place].seconds if self._left is None else self._beyond.seconds(held)

    def extrapolates(self, held: Features) -> str | None:
        return self._left
