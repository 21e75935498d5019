"""Operations of a pass that multiply by packed weights (`protocol.ProductOperations`).

Knows activations; what is multiplied how is in `products` and `experts`.
"""

from __future__ import annotations

from inflight.execution.backends.protocol import Nonlinearity
from inflight.execution.backends.reference.act import Act
from inflight.execution.backends.reference.activation import ReferenceActivation
from inflight.execution.backends.reference.experts import mixture
from inflight.execution.backends.reference.functions import activated
from inflight.execution.backends.reference.products import gate_up, product
from inflight.execution.backends.reference.weights import (
    ReferenceExperts,
    ReferenceGateUp,
    ReferenceHeads,
    ReferenceLinear,
)


class ProductOperations:
    def __init__(self, act: Act):
        self._act = act

    def linear(self, x: ReferenceActivation, weight: ReferenceLinear, out: ReferenceActivation) -> None:
        out.write(product(self._act.read(x.written), weight, self._act))

    def linear_residual(self, x: ReferenceActivation, weight: ReferenceLinear, out: ReferenceActivation) -> None:
        out.written[:] += product(self._act.read(x.written), weight, self._act)

    def linear_act(
        self, x: ReferenceActivation, weight: ReferenceLinear, activation: Nonlinearity, out: ReferenceActivation
    ) -> None:
        out.write(self._act.hold(activated(product(self._act.read(x.written), weight, self._act), activation)))

    def gate_up(
        self,
        x: ReferenceActivation,
        weight: ReferenceGateUp,
        out: ReferenceActivation,
        activation: Nonlinearity = "silu",
    ) -> None:
        out.write(gate_up(self._act.read(x.written), weight, activation, self._act))

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
