"""Operations on numbers one by one: activation functions, gates, factors, caps."""

from __future__ import annotations

from inflight.execution.backends.protocol.handles import Activation, Vector
from inflight.execution.backends.protocol.parameters import Nonlinearity
from inflight.execution.program import Program, operation


@operation
def clear(program: Program, out: Activation) -> None:
    """out float32[T, N] = 0."""


@operation
def to_act(program: Program, x: Activation, out: Activation) -> None:
    """x float32[S, E] → out act[S, E]."""


@operation
def scale(program: Program, x: Activation, factor: float) -> None:
    """x float32[S, N] → factor · x, in place."""


@operation
def soft_cap(program: Program, x: Activation, cap: float) -> None:
    """x float32[S, N] → cap · tanh(x / cap), in place. cap > 0."""


@operation
def activate(
    program: Program,
    x: Activation,
    activation: Nonlinearity,
    out: Activation,
    parameters: Vector | None = None,
    by: Activation | None = None,
    first: int = 0,
) -> None:
    """x float32[S, F] → out act[S, F], or float32[S, F], = activation(x); times columns first … first + F - 1 of
    `by` float32[S, N], where that is given, the product formed in float32. parameters: float32[2], the p and n of
    xielu."""


@operation
def add_gated(program: Program, x: Activation, gate: Activation, out: Activation) -> None:
    """out float32[T, E] plus sigmoid(gate float32[T, 1]) · x float32[T, E]."""


@operation
def gate(program: Program, gate: Activation, x: Activation) -> None:
    """x act[S, N] → x · sigmoid(gate float32[S, N]), in place."""
