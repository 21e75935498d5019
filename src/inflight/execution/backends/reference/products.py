"""Products with packed weights: x · Wᵀ, each token by itself.

Knows how numbers meet a matrix in each way to hold one; nothing of passes. Tokens are float32[S, K], of numbers that
`act` holds. To multiply them one by one is what makes a token's bits its own: numpy's matrix product may add up in
another order for another number of rows.
"""

from __future__ import annotations

import numpy as np

from inflight.execution.backends import grouped
from inflight.execution.backends.grouped import HeldMatrix
from inflight.execution.backends.protocol import Array, Gating, Nonlinearity
from inflight.execution.backends.reference.act import Act
from inflight.execution.backends.reference.functions import gated
from inflight.execution.backends.reference.weights import Held, ReferenceGateUp, ReferenceLinear


def product(tokens: Array, weight: ReferenceLinear, act: Act) -> Array:
    """float32[S, K] → float32[S, N]: y = x · Wᵀ + bias, of weights [N, K] in parts along N."""
    found = np.concatenate([_by_part(tokens, part, act) for part in weight.parts], axis=1)
    return found if weight.bias is None else found + weight.bias


def gate_up(
    tokens: Array, weight: ReferenceGateUp, gating: Gating | Nonlinearity, act: Act, added: Array | None = None
) -> Array:
    """float32[S, E] → act[S, F]: activation(x · gateᵀ) · (x · upᵀ), rounded once. added: to the sums of gate and of up,
    float32[S, 2F]."""
    gate, up = product(tokens, weight.gate, act), product(tokens, weight.up, act)
    if added is not None:
        gate, up = gate + added[:, : weight.rows], up + added[:, weight.rows :]
    return act.hold(gated(gate, up, gating))


def _by_part(tokens: Array, weight: Held, act: Act) -> Array:
    """Multiply by one matrix. Where that is quantized, tokens are too, with a scale for each 32 inputs."""
    if isinstance(weight, HeldMatrix):
        return grouped.product(tokens, weight)
    matrix = act.read(weight)
    found = np.empty((len(tokens), len(matrix)), np.float32)
    for t, token in enumerate(tokens):
        found[t] = matrix @ token
    return found
