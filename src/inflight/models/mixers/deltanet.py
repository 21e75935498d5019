"""Gated DeltaNet: its sizes and what follows from them."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from inflight.models.parts import LayerState, Mixer, StackedByHead, Weights, not_computed, refuse_long_kernel

if TYPE_CHECKING:
    from inflight.models.spec import LayerSpec, ModelSpec


class LinearAttention(Mixer, frozen=True, kw_only=True):
    """A matrix [key_dim, value_dim] of state for each value head, after a short convolution."""

    module: ClassVar[str] = "linear_attn"

    key_heads: int
    value_heads: int
    key_dim: int
    value_dim: int
    kernel: int

    @property
    def channels(self) -> int:
        """Channels of the convolution: queries, keys and values."""
        return 2 * self.key_heads * self.key_dim + self.value_heads * self.value_dim

    def weights(self, hidden: int) -> Weights:
        values = self.value_heads * self.value_dim
        matrices = ((self.channels + values, hidden), (2 * self.value_heads, hidden), (hidden, values))
        return Weights(matrices, self.channels * self.kernel + 2 * self.value_heads + self.value_dim)

    @property
    def plain_outputs(self) -> int:
        return 2 * self.value_heads  # what writes and what forgets decide what is remembered

    def recurrent_state(self, hidden: int) -> LayerState:
        return LayerState(self.kernel - 1, self.channels, self.value_heads, self.key_dim, self.value_dim)

    def refuse(self, model: ModelSpec, layer: LayerSpec) -> None:
        if self.value_heads % self.key_heads:
            raise not_computed(model, "linear attention whose heads of values do not share those of keys evenly")
        refuse_long_kernel(model, self.kernel)

    @property
    def whole(self) -> str:
        return "linear attention"

    @property
    def shared_heads(self) -> tuple[str, int]:
        return "heads of linear attention", self.key_heads

    def stacked_by_head(self, matrix: str) -> StackedByHead | None:
        shared = self.value_heads // self.key_heads
        if matrix in ("in_proj_b", "in_proj_a"):
            return StackedByHead("in_proj_ba", self.key_heads, (shared, shared), (1 if matrix == "in_proj_a" else 0,))
        if matrix not in ("in_proj_qkv", "in_proj_z"):
            return None
        widths = (self.key_dim, self.key_dim, shared * self.value_dim, shared * self.value_dim)
        return StackedByHead("in_proj_qkvz", self.key_heads, widths, (3,) if matrix == "in_proj_z" else (0, 1, 2))
