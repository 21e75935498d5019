"""Embed tokens before the first layer: add up their vectors, those of positions and token types, and norm the sum.

Most models have vectors of tokens alone, and rotate queries and keys by their positions instead (`attention`).
"""

from __future__ import annotations

from msgspec import Struct

from inflight.execution import ops
from inflight.execution.backends.protocol import Activation, Table
from inflight.execution.layers.norm import NormWeights
from inflight.execution.packer import Packer
from inflight.execution.program import Program


class EmbeddingWeights(Struct, frozen=True):
    """scale: that vectors of tokens are multiplied by. positions: with its first row that stands for one. Both tables,
    and the norm, None where the model has none."""

    tokens: Table
    scale: float
    positions: Table | None
    first_position: int
    types: Table | None
    norm: NormWeights | None

    @classmethod
    def load(cls, packer: Packer, tokens: Table) -> EmbeddingWeights:
        """tokens: packed before."""
        model, at = packer.model, "model.embed_"
        positions = model.positions
        return cls(
            tokens=tokens,
            scale=model.embedding_scale,
            positions=None if positions is None else packer.vectors(f"{at}positions.weight", positions.rows),
            first_position=0 if positions is None else positions.unused,
            types=packer.vectors(f"{at}types.weight", model.token_types) if model.token_types else None,
            norm=NormWeights.load(packer, f"{at}norm") if model.embedding_norm else None,
        )

    def forward(self, program: Program, hidden: Activation, normed: Activation) -> None:
        """Write hidden float32[T, E], the residual stream as the first layer finds it, and where there is a norm, the
        same to normed act[T, E]."""
        ops.embed(program, self.tokens, hidden)
        if self.scale != 1:
            ops.scale(program, hidden, self.scale)
        if self.types is not None:
            ops.add_token_types(program, self.types, hidden)
        if self.positions is not None:
            ops.add_positions(program, self.positions, self.first_position, hidden)
        if self.norm is not None:
            self.norm.forward_sum(program, hidden, normed)
