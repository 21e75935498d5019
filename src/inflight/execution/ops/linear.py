"""Products with packed weights."""

from __future__ import annotations

from inflight.execution.backends.protocol.handles import Activation, GateUp, Linear
from inflight.execution.backends.protocol.parameters import Nonlinearity
from inflight.execution.program import Program, operation


@operation
def linear(program: Program, x: Activation, weight: Linear, out: Activation) -> None:
    """x act[S, K] → out float32[S, N] = x · Wᵀ + bias."""


@operation
def linear_residual(program: Program, x: Activation, weight: Linear, out: Activation) -> None:
    """As `linear`, added to `out` (the residual stream)."""


@operation
def linear_act(program: Program, x: Activation, weight: Linear, activation: Nonlinearity, out: Activation) -> None:
    """x act[S, K] → out act[S, N] = activation(x · Wᵀ + bias), of the sums in float32. gelu, gelu_tanh or relu."""


@operation
def gate_up(
    program: Program, x: Activation, weight: GateUp, out: Activation, activation: Nonlinearity = "silu"
) -> None:
    """x act[S, E] → out act[S, F] = activation(x · gateᵀ) · (x · upᵀ), the product formed in float32. silu, gelu or
    gelu_tanh."""
