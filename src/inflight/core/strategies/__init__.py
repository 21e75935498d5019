"""Strategies: who may join the batch, when, and how many tokens of each are computed in a step.

A strategy proposes the shape of the next step from a read-only view; the composer fills it. It cannot take a row, a
block or a token by itself, and so cannot break an invariant. One file each.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from inflight.core.plan import WaitUntil


@dataclass(frozen=True, slots=True)
class StepView:
    """What a strategy sees before each step. now: seconds on the engine's clock."""

    now: float
    waiting: int
    running: int
    max_rows: int


@dataclass(frozen=True, slots=True)
class StepShape:
    """The step that a strategy proposes.

    token_budget: most tokens computed by the step. row_limit: most sequences running at once.
    """

    token_budget: int
    row_limit: int


class Strategy(Protocol):
    name: str

    def shape(self, view: StepView) -> StepShape | WaitUntil: ...
