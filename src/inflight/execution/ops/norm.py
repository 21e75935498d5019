"""Norms of rows."""

from __future__ import annotations

from inflight.execution.backends.protocol.handles import Activation, Vector
from inflight.execution.program import Program, operation


@operation
def rms_norm(program: Program, x: Activation, weight: Vector, eps: float, out: Activation) -> None:
    """x float32[S, E], weight float32[E] → out act[S, E], or float32[S, E], = x / sqrt(mean(x²) + eps) · weight."""


@operation
def layer_norm(
    program: Program, x: Activation, weight: Vector, bias: Vector | None, eps: float, out: Activation
) -> None:
    """x float32[S, E] → out act[S, E], or float32[S, E], = (x - mean(x)) / sqrt(variance(x) + eps) · weight +
    bias."""


@operation
def layer_norm_sum(
    program: Program, x: Activation, weight: Vector, bias: Vector | None, eps: float, out: Activation
) -> None:
    """x float32[S, E] becomes its layer norm, in place, of which out act[S, E] has the same numbers."""


@operation
def add(program: Program, x: Activation, norm: Vector | None, eps: float, factor: float, out: Activation) -> None:
    """x float32[S, E], or its RMS norm where there is a weight float32[E] for it: added, times `factor`, to out
    float32[S, E]. A weight float32[E / n] norms each of n equal parts of a row by itself."""
