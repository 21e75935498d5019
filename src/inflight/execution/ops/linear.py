"""Products with packed weights.

Each token is multiplied by itself: numpy's product of matrices may add up in another order for another number of rows.
"""

from __future__ import annotations

import numpy as np

from inflight.execution.backends.protocol import Array
from inflight.execution.backends.protocol.handles import Activation, GateUp, Linear
from inflight.execution.backends.protocol.parameters import Nonlinearity
from inflight.execution.ops.formulas import activated, gated
from inflight.execution.ops.numpy_pass import Act, NumpyPass
from inflight.execution.ops.numpy_weights import NumpyGateUp, NumpyLinear, Packed
from inflight.execution.program import operation


@operation()
def linear(on: NumpyPass, x: Activation, weight: Linear, out: Activation) -> None:
    """x act[S, K] → out float32[S, N] = x · Wᵀ + bias."""
    out.write(_sums(on, x, weight))


@operation()
def linear_residual(on: NumpyPass, x: Activation, weight: Linear, out: Activation) -> None:
    """Add a product, as `linear` has it, to `out` (the residual stream)."""
    out.written[:] += _sums(on, x, weight)


@operation()
def linear_act(on: NumpyPass, x: Activation, weight: Linear, activation: Nonlinearity, out: Activation) -> None:
    """x act[S, K] → out act[S, N] = activation(x · Wᵀ + bias), of the sums in float32. gelu, gelu_tanh or relu."""
    on.store(activated(_sums(on, x, weight), activation), out)


@operation()
def gate_up(on: NumpyPass, x: Activation, weight: GateUp, out: Activation, activation: Nonlinearity = "silu") -> None:
    """x act[S, E] → out act[S, F] = activation(x · gateᵀ) · (x · upᵀ), the product formed in float32. silu, gelu or
    gelu_tanh."""
    on.store(gated(_sums(on, x, weight), activation), out)


def _sums(on: NumpyPass, x: Activation, weight: NumpyLinear | NumpyGateUp) -> Array:
    """x act[S, K] → float32[S, N] = x · Wᵀ + bias, and the low-rank products of each row's adapter
    (`protocol.handles`)."""
    tokens, added = on.load(x), None
    sums = product(tokens, weight.both if isinstance(weight, NumpyGateUp) else weight, on.act)
    for rows, adapter in on.adapted:
        for part in adapter.of(weight):
            added = np.zeros_like(sums) if added is None else added
            lowered = on.act.rounded(product(tokens[rows], part.down, on.act))
            added[rows, part.first : part.first + part.up.rows] = product(lowered, part.up, on.act)
    return sums if added is None else sums + added


def product(tokens: Array, weight: NumpyLinear, act: Act) -> Array:
    """float32[S, K], numbers that `act` holds → float32[S, N]: y = x · Wᵀ + bias."""
    found = np.concatenate([_by_part(tokens, part, act) for part in weight.parts], axis=1)
    return found if weight.bias is None else found + weight.bias


def _by_part(tokens: Array, weight: Packed, act: Act) -> Array:
    if not isinstance(weight, np.ndarray):
        return weight.product(tokens)
    matrix = act.load(weight)
    found = np.empty((len(tokens), len(matrix)), np.float32)
    for t, token in enumerate(tokens):
        found[t] = matrix @ token
    return found
