"""A mixture of experts: each token passes those that a router picks."""

from __future__ import annotations

from inflight.execution.backends.protocol.handles import Activation, Experts
from inflight.execution.program import Program, operation


@operation
def experts(program: Program, x: Activation, logits: Activation, weight: Experts, out: Activation) -> None:
    """x act[T, E], logits float32[T, X] → out float32[T, E] plus the sum, in order of rank, of weight · expert(x)
    over the experts that the logits route a token to; an expert is `gate_up` (with its gating), then `linear`."""
