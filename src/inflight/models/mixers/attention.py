"""Softmax attention over cached keys and values: its sizes and what follows from them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, ClassVar, Literal

from msgspec.structs import replace

from inflight.models.parts import Matrix, Mixer, RotatedRows, Slices, StackedByHead, TokenKV, Weights, not_computed
from inflight.models.rope import RopeSettings

if TYPE_CHECKING:
    from inflight.models.spec import LayerSpec, ModelSpec

QkNorm = Literal["none", "head", "all"]


class Attention(Mixer, frozen=True, kw_only=True):
    """Softmax attention, query heads in groups that share a KV head.

    Attributes:
        heads: Query heads.
        causal: A token sees those before it alone; else those behind it, too, so that a text is computed whole and
            nothing of it is cached.
        window: Tokens that a query looks back over, itself included (not causal: to each side, itself not counted); 0
            sees all.
        chunked: The window restarts at its multiples instead of sliding.
        qk_norm: RMS norms of queries and keys, per head or over all heads at once.
        qk_norm_last: These norms stand behind the rotation (per head).
        sinks: A learnt logit of each head takes probability and has no value.
        gate: Queries bring a gate of their own width.
        scale: Of scores; 0 is head_dim^-0.5.
        soft_cap: Scores become c · tanh(score / c); 0 leaves them.
        rope: None where positions are not rotated, and of families that are only described.
        v_norm: An RMS norm of each head's values, without a weight.
        k_eq_v: Keys as they are projected are the values, too.
        kv_layer: The earlier layer whose keys and values it reads; it projects queries alone, and caches nothing.
        relative_buckets: Learnt numbers of each head, one of which is added to a score by the key's distance from the
            query (`backends.position_bias`), the same in all layers; 0: none.
    """

    module: ClassVar[str] = "self_attn"

    heads: int
    kv_heads: int
    head_dim: int
    causal: bool = True
    window: int = 0
    chunked: bool = False
    qk_norm: QkNorm = "none"
    qk_norm_last: bool = False
    qkv_bias: bool = False
    output_bias: bool = False
    sinks: bool = False
    gate: bool = False
    scale: float = 0.0
    soft_cap: float = 0.0
    rope: RopeSettings | None = None
    v_norm: bool = False
    k_eq_v: bool = False
    kv_layer: int | None = None
    relative_buckets: int = 0

    @property
    def projected(self) -> int:
        """Return how many of keys and values it projects: 0, 1 or 2."""
        return 0 if self.kv_layer is not None else 1 if self.k_eq_v else 2

    @property
    def qkv_rows(self) -> int:
        """Rows of the stacked query, key and value projection, a gate of the queries included."""
        return ((2 if self.gate else 1) * self.heads + self.projected * self.kv_heads) * self.head_dim

    # -- weights -------------------------------------------------------------------------------------------------------
    def weights(self, hidden: int) -> Weights:
        queries, keys = self.heads * self.head_dim, self.kv_heads * self.head_dim
        has_keys = self.projected > 0
        others = {"none": 0, "head": (1 + has_keys) * self.head_dim, "all": queries + has_keys * keys}[self.qk_norm]
        others += self.qkv_rows if self.qkv_bias else 0
        others += hidden if self.output_bias else 0
        others += self.heads if self.sinks else 0
        return Weights(((self.qkv_rows, hidden), (hidden, queries)), others)

    def adapter_matrices(self, hidden: int) -> tuple[Matrix, ...]:
        queries, keys = self.heads * self.head_dim, self.kv_heads * self.head_dim
        return ((queries, hidden), *((keys, hidden),) * self.projected, (hidden, queries))

    def value_elements(self, hidden: int) -> int:
        return self.kv_heads * self.head_dim * hidden if self.projected == 2 else 0

    @property
    def shared_elements(self) -> int:
        return self.relative_buckets * self.heads

    # -- memory and operations -----------------------------------------------------------------------------------------
    @property
    def reads(self) -> TokenKV:
        return TokenKV(self.kv_heads, self.head_dim, self.head_dim)

    def with_rope(self, rope_of: Callable[[Attention], RopeSettings | None]) -> Attention:
        return replace(self, rope=rope_of(self))

    def pair_flops(self, compressed: bool = False) -> int:
        return 4 * self.heads * self.head_dim

    def refuse(self, model: ModelSpec, layer: LayerSpec) -> None:
        if self.chunked:
            raise not_computed(model, "chunked windows")
        if self.qk_norm != "none" and model.norm.kind != "rms":
            raise not_computed(model, "layer norms of queries and keys")

    # -- on several devices --------------------------------------------------------------------------------------------
    @property
    def whole(self) -> str | None:
        """A norm over all heads at once would need those of other devices; numbers for distances lie with heads in
        turns."""
        if self.qk_norm != "all" and not self.relative_buckets:
            return None
        return "attention whose norms are over all heads, or that learns distances"

    @property
    def shared_heads(self) -> tuple[str, int]:
        return "query heads", self.heads

    def uneven(self, devices: int) -> str | None:
        if not self.heads % devices and not (self.kv_heads % devices and devices % self.kv_heads):
            return None
        return f"{self.heads} query heads and {self.kv_heads} KV heads"

    def on_one_of(self, devices: int) -> Attention:
        return replace(self, heads=self.heads // devices, kv_heads=max(1, self.kv_heads // devices))

    def slices(self, tensor: str, devices: int) -> Slices | None:
        if tensor in ("k_proj", "v_proj"):
            return Slices("outputs", min(devices, self.kv_heads))
        if tensor in ("q_proj", "gate_proj", "sinks"):
            return Slices("outputs", devices)
        return Slices("inputs", devices) if tensor == "o_proj" else None

    # -- in a checkpoint -----------------------------------------------------------------------------------------------
    def rows(self, matrix: str) -> int:
        return (self.heads if matrix == "q_proj" else self.kv_heads) * self.head_dim

    def stacked_by_head(self, matrix: str) -> StackedByHead | None:
        if not self.gate or matrix not in ("q_proj", "gate_proj"):
            return None
        return StackedByHead("q_proj", self.heads, (self.head_dim,) * 2, (1 if matrix == "gate_proj" else 0,))

    def rotated_rows(self, tensor: str) -> RotatedRows | None:
        return RotatedRows(0, self.head_dim) if tensor in ("q_proj", "k_proj", "q_norm", "k_norm") else None
