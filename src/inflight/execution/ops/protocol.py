"""The op set: the few operations one decoder needs from a device.

Knows the shapes, dtypes and meaning of each operation, and nothing of models, schedulers or requests. Two op sets
implement it: `reference` (numpy, slow and readable, the definition of what is right) and `native` (C++ kernels,
the default on a CPU). Letters: T tokens of the step, C chunks, S sampled rows, H query heads, G key/value heads,
D head dimension, E hidden size, F feed-forward size, V vocabulary, B block size in tokens.

Number formats. `dtype` is "bfloat16" or "float32" and names how weights, keys, values and activations (`act`) are
held; numpy has no bfloat16, so bf16 arrays are uint16 arrays of the upper half of a float32. The residual stream,
norm weights, biases, accumulators and logits are always float32. Where an operation turns float32 into `act` it
rounds to nearest even.

A weight matrix may be held in int8 beside either of them: whole numbers with a scale for each output. A product then
quantizes each token of x too, with a scale of its own (`int8.py` has the rule), and multiplies whole numbers. So may
keys and values (`KVShape.quantized`). Everything else, `act` included, stays as it is.

Batch invariance (design section 7) is part of the contract: what an operation computes for one token, one query or
one sampled row must have the same bits whatever other tokens, queries or rows are in the call.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol, runtime_checkable

import numpy as np

Array = np.ndarray[Any, Any]
DType = Literal["bfloat16", "float32"]
# Which matrices a model's loader packs in int8: none, those of the layers, or the output projection too, and with it a
# tied embedding table.
Quantization = Literal["none", "int8", "int8-all"]


@dataclass(frozen=True, slots=True)
class StepLayout:
    """Where the tokens of one step lie. Built once per step, read by every layer.

    Tokens of chunk c are rows `offsets[c]:offsets[c + 1]` of every [T, …] array; its first token stands at position
    `starts[c]` of its sequence. Position p of that sequence lives in block `tables[c, p // B]`, slot `p % B`.
    """

    positions: Array  # int32[T], position of each token in its own sequence
    offsets: Array  # int32[C + 1], ascending, offsets[0] = 0, offsets[C] = T
    starts: Array  # int32[C]
    tables: Array  # int32[C, any width]; entries past a chunk's last block are never read


@dataclass(frozen=True, slots=True)
class KVShape:
    """One block of one layer holds B positions of G heads of D values, twice (keys and values).

    quantized: in int8, with a scale for each position and head of the keys, and of the values, by the rule of `int8.py`
    from what `act` would hold. Attention then multiplies whole numbers: queries are rounded once more, to 16 bits with
    a scale of their own, and so are probabilities (times the scales of their values), instead of to `act`.
    """

    layers: int
    block_size: int  # tokens per block, a multiple of 16
    kv_heads: int
    head_dim: int  # even
    quantized: bool = False


@dataclass(frozen=True, slots=True)
class RopeTable:
    """Rotary embedding by halves (Hugging Face convention: x[i] pairs with x[i + D/2]); scaling is already in."""

    cos: Array  # float32[positions, D / 2]
    sin: Array  # float32[positions, D / 2]


@dataclass(frozen=True, slots=True)
class SamplingBatch:
    """Settings of the S rows to sample, as arrays (struct of arrays, so that one native call serves all rows).

    Order of work per row, as vLLM does it: log-probabilities are taken from the untouched logits; then `bias`, then
    the repetition penalty (tokens of prompt and output), frequency and presence penalties (tokens of the output);
    temperature 0 takes the largest logit (lowest id on a tie); otherwise logits / temperature, min-p, top-k, top-p,
    and one draw. top-k keeps exactly k tokens; top-p keeps a token while the mass before it is below top_p times the
    mass that min-p and top-k left, and always one. NaN logits count as -inf; where the largest scaled logit is not
    finite, the row is greedy.
    The draw is u = ((w1 << 32 | w0) >> 11) · 2⁻⁵³ of the words w = philox4x32_10(key=seed, counter=(draw_index,
    sample_index, 0, 0)), against the cumulative float64 probabilities of the kept tokens in order of falling
    probability (ties by rising id); with nothing filtered (top_k 0, top_p 1, min_p 0) in order of rising id.
    """

    temperature: Array  # float32[S], 0 = greedy
    top_k: Array  # int32[S], 0 = off
    top_p: Array  # float32[S], 1 = off
    min_p: Array  # float32[S], 0 = off
    repetition_penalty: Array  # float32[S], 1 = off
    presence_penalty: Array  # float32[S], 0 = off
    frequency_penalty: Array  # float32[S], 0 = off
    seed: Array  # uint64[S]
    sample_index: Array  # uint32[S], i of "sample i of a request"
    draw_index: Array  # uint32[S], how many tokens this sample has drawn before
    histories: Sequence[Array | None]  # per row int32[known tokens]; None unless a penalty needs it
    prompt_lengths: Array  # int32[S]; histories[s][prompt_lengths[s]:] is the output
    bias_offsets: Array  # int32[S + 1]: row s adds bias_values[o[s]:o[s+1]] at token ids bias_ids[…] (-inf bans)
    bias_ids: Array  # int32[…]
    bias_values: Array  # float32[…]
    want_logprobs: Array  # bool[S]
    top_logprobs: Array  # int32[S], alternatives wanted beside the sampled token, 0 = none


@dataclass(frozen=True, slots=True)
class SampledBatch:
    """What sampling yielded. Log-probabilities are valid only in rows that asked; alternatives beyond a row's count
    are not meaningful. Alternatives come in order of falling log-probability (ties by rising id)."""

    token_ids: Array  # int32[S]
    logprobs: Array  # float32[S], of the sampled token under the untouched logits
    top_ids: Array  # int32[S, widest row]
    top_logprobs: Array  # float32[S, widest row]


@dataclass(frozen=True, slots=True)
class ScoredBatch:
    """Log-probabilities of S given tokens, with alternatives as in `SampledBatch`."""

    logprobs: Array  # float32[S]
    top_ids: Array  # int32[S, widest row]
    top_logprobs: Array  # float32[S, widest row]


class KVArena(Protocol):
    """Key/value memory of all layers, opaque to everyone but its op set."""

    @property
    def shape(self) -> KVShape: ...

    @property
    def num_blocks(self) -> int: ...

    @property
    def nbytes(self) -> int: ...

    def copy_blocks(self, sources: Sequence[int], destinations: Sequence[int]) -> None:
        """Copy whole blocks (all layers) inside the arena."""


Linear = Any  # a weight matrix [N, K] with optional bias, packed; exposes .rows (N), .columns (K), .nbytes
Gated = Any  # gate and up projections packed together; exposes .rows (F), .columns (E), .nbytes
Table = Any  # an embedding table [V, E]; exposes .rows, .columns, .nbytes, and .linear (Linear, or None when untied)


@runtime_checkable
class OpSet(Protocol):
    """Handles (Linear, Gated, Table, arenas) are opaque: an op set takes back only what it gave out.

    Weights are given as numpy arrays [N, K] of float32, float16 or uint16 (= bf16) and may be read-only memory
    maps; packing converts to `dtype` or to int8 and copies, so that the source can be released at once."""

    name: str  # e.g. "reference", "native avx512_bf16"
    dtype: DType
    threads: int

    # -- once, at load ------------------------------------------------------------------------------------------
    def pack_linear(self, parts: Sequence[Array], bias: Array | None = None, quantized: bool = False) -> Linear:
        """`parts` are stacked along N (q, k, v) without building the stack. bias float32[N] or None. `quantized` holds
        the weights in int8; raises ValueError for more than 133,144 columns, whose sums could pass 32 bits."""

    def pack_gated(self, gate: Array, up: Array, quantized: bool = False) -> Gated: ...

    def pack_table(self, table: Array, tied: bool, quantized: bool = False) -> Table:
        """Embedding table. Tied: also usable as the output projection through `.linear`, and held once; only then it
        may be `quantized` (else ValueError)."""

    def bytes_per_block(self, shape: KVShape) -> int: ...

    def kv_arena(self, shape: KVShape, num_blocks: int) -> KVArena: ...

    # -- per step; every `out` is written whole ---------------------------------------------------------------------
    def embed(self, table: Table, token_ids: Array, out: Array) -> None:
        """token_ids int32[T] → out float32[T, E]."""

    def rms_norm(self, x: Array, weight: Array, eps: float, out: Array) -> None:
        """x float32[T, E], weight float32[E] → out act[T, E] = x / sqrt(mean(x²) + eps) · weight."""

    def linear(self, x: Array, weight: Linear, out: Array) -> None:
        """x act[T, K] → out float32[T, N] = x · Wᵀ + bias."""

    def linear_add(self, x: Array, weight: Linear, out: Array) -> None:
        """As `linear`, added to `out` (the residual stream)."""

    def gated(self, x: Array, weight: Gated, out: Array) -> None:
        """x act[T, E] → out act[T, F] = silu(x · gateᵀ) · (x · upᵀ), the product formed in float32."""

    def rope_and_write_kv(
        self,
        qkv: Array,
        arena: Any,
        layer: int,
        layout: StepLayout,
        rope: RopeTable,
        q_norm: Array | None,
        k_norm: Array | None,
        eps: float,
        q_out: Array,
    ) -> None:
        """qkv float32[T, (H + 2G)·D], heads in the order q, k, v. Applies the optional per-head RMS norms (float32[D],
        Qwen3), rotates q and k, writes k and v of every token into the arena, and q into q_out act[T, H·D].
        All keys and values of the step are written before it returns: chunks may read each other's blocks."""

    def attention(
        self, q: Array, arena: Any, layer: int, layout: StepLayout, scale: float, window: int, out: Array
    ) -> None:
        """q act[T, H·D] → out act[T, H·D]. A query at position p sees positions max(0, p - window + 1) … p of its own
        chunk's table; window 0 sees all. Query head h reads key/value head h // (H / G). In bfloat16 the probabilities
        are rounded before they meet the values (over quantized ones, see `KVShape`); their sum is not. scale > 0."""

    def sample(self, logits: Array, batch: SamplingBatch) -> SampledBatch:
        """logits float32[S, V]; may be overwritten, but where the drawn token stood, its logit stands (biased or not):
        if that is not finite, the row had nothing to draw, or an infinity."""

    def score(self, logits: Array, token_ids: Array, top_logprobs: Array) -> ScoredBatch:
        """What `sample` would report had it drawn token_ids int32[S] from logits float32[S, V], which may be
        overwritten. top_logprobs int32[S]: alternatives wanted beside each."""
