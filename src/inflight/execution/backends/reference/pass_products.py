"""Operations of a pass that multiply by packed weights (`protocol.ProductOperations`).

Knows activations; what is multiplied how is in `products`.
"""

from __future__ import annotations

import numpy as np

from inflight.execution.backends.protocol import Array, Nonlinearity
from inflight.execution.backends.reference.act import Act
from inflight.execution.backends.reference.activation import ReferenceActivation
from inflight.execution.backends.reference.adapters import AddedRows
from inflight.execution.backends.reference.functions import activated
from inflight.execution.backends.reference.products import gate_up, product
from inflight.execution.backends.reference.routing import route
from inflight.execution.backends.reference.weights import (
    ReferenceExperts,
    ReferenceGateUp,
    ReferenceHeads,
    ReferenceLinear,
)


class ProductOperations:
    def __init__(self, act: Act, added: AddedRows):
        self._act, self._added = act, added

    def linear(self, x: ReferenceActivation, weight: ReferenceLinear, out: ReferenceActivation) -> None:
        out.write(self._product(x, weight))

    def linear_residual(self, x: ReferenceActivation, weight: ReferenceLinear, out: ReferenceActivation) -> None:
        out.written[:] += self._product(x, weight)

    def linear_act(
        self, x: ReferenceActivation, weight: ReferenceLinear, activation: Nonlinearity, out: ReferenceActivation
    ) -> None:
        out.write(self._act.hold(activated(self._product(x, weight), activation)))

    def gate_up(
        self,
        x: ReferenceActivation,
        weight: ReferenceGateUp,
        out: ReferenceActivation,
        activation: Nonlinearity = "silu",
    ) -> None:
        tokens = self._act.read(x.written)
        out.write(gate_up(tokens, weight, activation, self._act, self._added.to(tokens, weight)))

    def _product(self, x: ReferenceActivation, weight: ReferenceLinear) -> Array:
        tokens = self._act.read(x.written)
        sums, added = product(tokens, weight, self._act), self._added.to(tokens, weight)
        return sums if added is None else sums + added

    def experts(
        self, x: ReferenceActivation, logits: ReferenceActivation, weight: ReferenceExperts, out: ReferenceActivation
    ) -> None:
        tokens = self._act.read(x.written)
        for t, of_token in enumerate(logits.written):
            out.array[t] += mixture(tokens[t : t + 1], of_token, weight, self._act)

    def by_head(self, x: ReferenceActivation, weight: ReferenceHeads, out: ReferenceActivation) -> None:
        out.rows = x.rows
        heads = self._act.read(x.written).reshape(x.rows, weight.count, weight.columns)
        into = out.written.reshape(x.rows, weight.count, -1)
        for head, matrix in enumerate(weight.matrices):
            into[:, head, : weight.rows] = self._act.hold(product(heads[:, head], matrix, self._act))


def mixture(token: Array, logits: Array, weight: ReferenceExperts, act: Act) -> Array:
    """Return what the experts yield that a token is routed to (Shazeer et al., arXiv 1701.06538): token float32[1, E],
    logits float32[X] → float32[E] = Σ share · (gate_up(x) · downᵀ), in order of rank: one float32 chain."""
    total = np.zeros(weight.down[0].rows, np.float32)
    for expert, share in zip(*route(logits, weight.routing), strict=True):
        inner = act.read(gate_up(token, weight.gate_up[expert], weight.gating, act))
        total += share * product(inner, weight.down[expert], act)[0]
    return total
