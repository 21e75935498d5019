"""What a simulated step costs: the protocol of step models.

A step model knows features of plans and seconds, and on what it rests; not plans, not schedulers. (The
engine's own model in `core.estimation.latency` is another thing: learnt from the steps as they pass, for the scheduler
under test.)
"""

from __future__ import annotations

from typing import Protocol

from inflight.core.types.features import Features


class StepModel(Protocol):
    @property
    def name(self) -> str:
        """What the model is and what it rests on, for a reader of results: "fitted on 812 steps of …", "H100, data
        sheet"."""

    def seconds(self, held: Features) -> float:
        """How long the step takes, above zero. `held` is the caller's, who may use it again: take numbers out of it, do
        not keep it."""

    def extrapolates(self, held: Features) -> str | None:
        """A sentence with the number that lies outside of what the model rests on; None where it lies inside."""
