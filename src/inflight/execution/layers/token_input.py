"""Add per-layer embeddings of tokens to the residual stream (Gemma 4).

Before the first layer, for all layers at once: rows of a table, and numbers projected from the embedding and normed
layer by layer, added up. In each layer, behind its MLP: a gate that reads the residual stream weighs the layer's share,
which is projected back, normed and added.
"""

from __future__ import annotations

import math

from msgspec import Struct

from inflight.execution import ops
from inflight.execution.backends.protocol import Activation, Linear, Table, Vector
from inflight.execution.layers.norm import Residual
from inflight.execution.packer import Packer
from inflight.execution.program import Program
from inflight.models.mlps.dense import ACTIVATIONS
from inflight.models.spec import TokenInput

_NAME = "token_inputs"  # of the activation float32[T, L·P]


class TokenInputTable(Struct, frozen=True):
    """Per-layer embeddings of all L layers. width: P, of a layer's share."""

    width: int
    table: Table  # [V, L·P]
    projection: Linear  # [L·P, E]
    norm: Vector  # float32[P]
    eps: float

    @classmethod
    def load(cls, packer: Packer, spec: TokenInput) -> TokenInputTable:
        model = packer.model
        columns, hidden = len(model.layers) * spec.width, model.hidden_size
        return cls(
            width=spec.width,
            table=packer.rows("model.embed_tokens_per_layer.weight", (spec.vocab_size, columns), spec.width),
            projection=packer.linear([("model.per_layer_model_projection.weight", (columns, hidden))]),
            norm=packer.norm("model.per_layer_projection_norm.weight", spec.width),
            # What is normed is the projection times E^-0.5; that is the projection's norm under an epsilon times E.
            eps=model.norm.eps * hidden,
        )

    def forward(self, program: Program, hidden: Activation, normed: Activation) -> None:
        """Compute all layers' shares, (row · √P + norm) / √2, of hidden float32[T, E], the embeddings; normed act[T, E]
        is memory for them."""
        inputs = program.take(_NAME, self.table.columns, "float32")
        projected = program.take("projected_inputs", self.table.columns, "float32")
        ops.embed(program, self.table, inputs)
        ops.scale(program, inputs, math.sqrt(self.width / 2))
        ops.to_act(program, hidden, normed)
        ops.linear(program, normed, self.projection, projected)
        ops.add(program, projected, self.norm, self.eps, math.sqrt(0.5), inputs)


class TokenInputWeights(Struct, frozen=True):
    """Weights of one layer's token input."""

    spec: TokenInput
    layer: int
    columns: int  # of all layers' shares
    gate: Linear  # [P, E]
    projection: Linear  # [E, P]
    residual: Residual

    @classmethod
    def load(cls, packer: Packer, spec: TokenInput, layer: int) -> TokenInputWeights:
        at, hidden = f"model.layers.{layer}.", packer.model.hidden_size
        return cls(
            spec=spec,
            layer=layer,
            columns=len(packer.model.layers) * spec.width,
            gate=packer.linear([(at + "per_layer_input_gate.weight", (spec.width, hidden))]),
            projection=packer.linear([(at + "per_layer_projection.weight", (hidden, spec.width))]),
            residual=Residual.load(packer, at + "post_per_layer_input_norm"),
        )

    def forward(self, program: Program, hidden: Activation, normed: Activation) -> None:
        """Add the layer's share to hidden float32[T, E], the residual stream. normed act[T, E]: memory for it."""
        width = self.spec.width
        inputs = program.take(_NAME, self.columns, "float32")
        opened, weighed = program.take("gated_inputs", width, "float32"), program.take("weighed_inputs", width)
        ops.to_act(program, hidden, normed)
        ops.linear(program, normed, self.gate, opened)
        ops.activate(program, opened, ACTIVATIONS[self.spec.activation], weighed, by=inputs, first=self.layer * width)
        self.residual.add(program, weighed, self.projection, hidden)
