"""Rows of an activation picked out, and means of ranges of them."""

from __future__ import annotations

from inflight.execution.backends.protocol.handles import Activation
from inflight.execution.program import Program, operation


@operation
def gather(program: Program, x: Activation, out: Activation) -> None:
    """Rows of x float32[T, E] at the `places` of the run (indices into the pass's tokens) → out float32[S, E]."""


@operation
def mean(program: Program, x: Activation, out: Activation) -> None:
    """Means of the rows of x float32[T, E] in each of the run's `texts`, ranges of one or more → out float32[S, E]."""
