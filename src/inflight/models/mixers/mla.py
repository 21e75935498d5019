"""Multi-head latent attention (DeepSeek): its sizes and what follows from them."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from inflight.models.parts import Mixer, RotatedRows, TokenKV, Weights, not_computed
from inflight.models.rope import RopeSettings

if TYPE_CHECKING:
    from inflight.models.spec import LayerSpec, ModelSpec

_WIDEST = 1024  # keys that the kernels of attention read


class LatentAttention(Mixer, frozen=True, kw_only=True):
    """Attention that caches of a token one compressed vector and one rotated key for all heads.

    Attributes:
        q_lora_rank: Width of compressed queries; 0: queries are projected directly.
        rope: Of the rotated key and its part of queries; its `score_factor` multiplies the scale of scores.
    """

    module: ClassVar[str] = "self_attn"

    heads: int
    kv_lora_rank: int
    q_lora_rank: int
    qk_nope_head_dim: int
    qk_rope_head_dim: int
    v_head_dim: int
    bias: bool = False
    rope: RopeSettings | None = None

    @property
    def cached_width(self) -> int:
        """Numbers that are cached of a token: the compressed vector, behind it the rotated key."""
        return self.kv_lora_rank + self.qk_rope_head_dim

    @property
    def scale(self) -> float:
        """Return the factor of attention scores."""
        factor = 1.0 if self.rope is None else self.rope.score_factor
        return float((self.qk_nope_head_dim + self.qk_rope_head_dim) ** -0.5 * factor)

    def weights(self, hidden: int) -> Weights:
        queries = self.heads * (self.qk_nope_head_dim + self.qk_rope_head_dim)
        matrices = [
            (self.cached_width, hidden),
            (self.heads * (self.qk_nope_head_dim + self.v_head_dim), self.kv_lora_rank),
            (hidden, self.heads * self.v_head_dim),
        ]
        rank = self.q_lora_rank
        matrices += [(rank, hidden), (queries, rank)] if rank else [(queries, hidden)]
        bias = rank + self.cached_width + hidden if self.bias else 0
        return Weights(tuple(matrices), rank + self.kv_lora_rank + bias)

    @property
    def transposed(self) -> tuple[int, int, int]:
        return self.heads, self.qk_nope_head_dim, self.kv_lora_rank

    @property
    def reads(self) -> TokenKV:
        return TokenKV(1, self.cached_width, 0)

    def pair_flops(self, compressed: bool = False) -> int:
        """One query is computed over the cached vectors as they lie; for many at once keys and values are made of them
        first."""
        plain = self.qk_nope_head_dim + self.qk_rope_head_dim + self.v_head_dim
        return 2 * self.heads * (2 * self.kv_lora_rank + self.qk_rope_head_dim if compressed else plain)

    def refuse(self, model: ModelSpec, layer: LayerSpec) -> None:
        if self.kv_lora_rank % 16:
            raise not_computed(model, f"a kv_lora_rank of {self.kv_lora_rank}, which is no multiple of 16")
        if self.cached_width > _WIDEST:
            raise not_computed(model, f"kv_lora_rank and qk_rope_head_dim of {self.cached_width} together")

    @property
    def whole(self) -> str:
        return "latent attention"

    @property
    def shared_heads(self) -> tuple[str, int]:
        return "query heads", self.heads

    def rotated_rows(self, tensor: str) -> RotatedRows | None:
        if tensor in ("q_proj", "q_b_proj"):
            return RotatedRows(self.qk_nope_head_dim, self.qk_nope_head_dim + self.qk_rope_head_dim)
        return RotatedRows(self.kv_lora_rank, self.cached_width) if tensor == "kv_a_proj_with_mqa" else None
