"""Operations on numbers one by one: activation functions, gates, factors, caps."""

from __future__ import annotations

import numpy as np

from inflight.execution.backends.protocol.handles import Activation, Vector
from inflight.execution.backends.protocol.parameters import Nonlinearity
from inflight.execution.ops.formulas import activated, sigmoid, soft_capped, times_sigmoid
from inflight.execution.ops.numpy_pass import NumpyPass
from inflight.execution.program import operation


@operation()
def clear(on: NumpyPass, out: Activation) -> None:
    """out float32[T, N] = 0."""
    out.write(np.zeros((len(on.token_ids), out.width), np.float32))


@operation()
def to_act(on: NumpyPass, x: Activation, out: Activation) -> None:
    """x float32[S, E] → out act[S, E]."""
    on.store(x.written, out)


@operation()
def scale(on: NumpyPass, x: Activation, factor: float) -> None:
    """x float32[S, N] → factor · x, in place."""
    x.written[:] *= np.float32(factor)


@operation()
def soft_cap(on: NumpyPass, x: Activation, cap: float) -> None:
    """x float32[S, N] → cap · tanh(x / cap), in place. cap > 0."""
    x.written[:] = soft_capped(x.written, cap)


@operation()
def activate(
    on: NumpyPass,
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
    found = activated(x.written, activation, parameters)
    on.store(found if by is None else found * by.written[:, first : first + x.width], out)


@operation()
def add_gated(on: NumpyPass, x: Activation, gate: Activation, out: Activation) -> None:
    """out float32[T, E] plus sigmoid(gate float32[T, 1]) · x float32[T, E]."""
    out.written[:] += times_sigmoid(x.written, gate.written)


@operation()
def gate(on: NumpyPass, gate: Activation, x: Activation) -> None:
    """x act[S, N] → x · sigmoid(gate float32[S, N]), in place."""
    on.store(on.load(x) * sigmoid(gate.written), x)
