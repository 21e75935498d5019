"""A guard around a strategy that is not ours: when it fails, one of ours takes over, and a sentence says so.

Knows nothing of what the strategy means; only that a fault in it must not stop the engine.
"""

from __future__ import annotations

from collections.abc import Callable

from inflight.core.strategies import StepShape, StepView, Strategy
from inflight.core.types.features import Features
from inflight.core.types.plan import WaitUntil


class Guarded:
    def __init__(self, strategy: Strategy, fallback: Strategy, report: Callable[[str], None]):
        """report: told once, in a sentence, when the strategy failed. fallback: decides from then on."""
        self.name = str(getattr(strategy, "name", type(strategy).__name__))
        self._strategy = strategy
        self._report = report
        self._fallback = fallback
        self._failed = False

    def shape(self, view: StepView) -> StepShape | WaitUntil:
        if not self._failed:
            try:
                return self._checked(self._strategy.shape(view), view.now)
            except Exception as fault:  # whatever a stranger's code raises
                self._fail("shape", fault)
        return self._fallback.shape(view)

    def observe(self, features: Features, seconds: float) -> None:
        if not self._failed:
            try:
                self._strategy.observe(features, seconds)
            except Exception as fault:
                self._fail("observe", fault)

    def _fail(self, what: str, fault: Exception) -> None:
        self._failed = True
        self._report(
            f"The strategy {self.name!r} failed in {what} ({type(fault).__name__}: {fault}); {self._fallback.name} has "
            "taken over."
        )

    @staticmethod
    def _checked(shape: StepShape | WaitUntil, now: float) -> StepShape | WaitUntil:
        if isinstance(shape, WaitUntil):
            if not shape.time > now:
                raise ValueError(f"it waits until {shape.time}, which is not after {now}")
            return shape
        if not isinstance(shape, StepShape):
            raise TypeError(f"a shape must be a StepShape or WaitUntil, not {shape!r}")
        if shape.token_budget < 1 or shape.row_limit < 1:
            raise ValueError(f"a step of {shape.token_budget} tokens and {shape.row_limit} rows serves nobody")
        return shape
