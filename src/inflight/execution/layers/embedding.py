"""Embeds tokens before the first layer: their vectors, those of positions and token types, and a norm.

Knows the order in which they are added up. Most models have vectors of tokens alone, and turn queries and keys by their
positions instead (`attention`).
"""

from __future__ import annotations

from collections.abc import Callable

from msgspec import Struct

from inflight.execution.backends.protocol import Activation, ForwardPass, Table
from inflight.execution.layers.norm import NormWeights
from inflight.execution.packer import Packer


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
            positions=None if positions is None else packer.place_table(f"{at}positions.weight", positions.rows),
            first_position=0 if positions is None else positions.unused,
            types=packer.place_table(f"{at}types.weight", model.token_types) if model.token_types else None,
            norm=NormWeights.load(packer, f"{at}norm") if model.embedding_norm else None,
        )

    def bind(self, hidden: Activation, normed: Activation) -> Callable[[ForwardPass], None]:
        """hidden float32[T, E]: the residual stream as the first layer finds it; normed act[T, E]: the same, where
        there is a norm."""
        tokens, scale, positions, types = self.tokens, self.scale, self.positions, self.types
        first, norm = self.first_position, None if self.norm is None else self.norm.bind_sum(hidden, normed)

        def run(batch: ForwardPass) -> None:
            batch.embed(tokens, hidden)
            if scale != 1:
                batch.scale(hidden, scale)
            if types is not None:
                batch.add_token_types(types, hidden)
            if positions is not None:
                batch.add_positions(positions, first, hidden)
            if norm is not None:
                norm(batch)

        return run
