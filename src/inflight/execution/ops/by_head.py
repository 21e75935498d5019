"""A product of each head's part of a row with a matrix of its own."""

from __future__ import annotations

from inflight.execution.backends.protocol.handles import Activation, Heads
from inflight.execution.program import Program, operation


@operation
def by_head(program: Program, x: Activation, weight: Heads, out: Activation) -> None:
    """x act[T, H·K] → out act[T, H·M], M ≥ N: the first N numbers of each head = x of the head · Wᵀ of the head.
    The others stay as they are."""
