"""The backend: what the model runner and the decoder need from a device.

Knows the shapes, dtypes and meaning of each operation, and nothing of models, schedulers or requests. A backend owns
all memory: packed weights, the KV cache, request slots, activations. It takes back only what it gave out, and nobody
else looks inside. `prepare` is called once for each forward pass: it takes up what is new of the slots, gathers the
pass's tokens, checks positions and block tables, and divides the work; the operations of all layers are methods of what
it returns. `reference` (numpy, slow and readable) is the definition of what is right, `native` (C++ kernels) the
default on a CPU, and `null` computes nothing.

Letters: T tokens of the pass, C chunks, S rows of a product (all tokens, or those gathered), H query heads, G key/value
heads, D head dimension, E hidden size, F feed-forward size, V vocabulary, B block size in tokens, X experts.

Number formats. `dtype` is "bfloat16" or "float32" and names how weights, keys, values and activations (`act`) are
held; numpy has no bfloat16, so bf16 arrays are uint16 arrays of the upper half of a float32. The residual stream,
norm weights, biases, accumulators and logits are always float32. Where an operation turns float32 into `act` it
rounds to nearest even.

A weight matrix may be held in int8 beside either of them, whole numbers with a scale for each output, or in int4,
codes with a scale and maybe an offset for each group of inputs. A product then quantizes each token of x to int8 too,
with a scale of its own (`int8.py` and `int4.py` have the rules), and multiplies whole numbers. Keys and values may be
int8 (`KVShape.quantized`). Everything else, `act` included, stays as it is.

Batch invariance is part of the contract: what an operation computes for one token, one query or one sampled row must
have the same bits whatever other tokens, queries or rows are in the call.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, Protocol, runtime_checkable

import numpy as np

from inflight.core.types.plan import Capacity, Chunk, NewRow, Pooled, Sampled, Scored
from inflight.execution.backends.matrices import Matrix

Array = np.ndarray[Any, Any]
DType = Literal["bfloat16", "float32"]
# Activation functions. gelu_tanh: x · sigmoid(2 · √(2/π) · (x + 0.044715 · x³)), which is gelu by tanh; relu2: the
# square of max(x, 0).
Nonlinearity = Literal["silu", "gelu_tanh", "relu2"]
# Which plain matrices a model's loader quantizes: none, those of the layers, or the output projection too, and with it
# a tied embedding table.
Quantization = Literal["none", "int8", "int8-all", "int4", "int4-all"]
Hold = Literal["act", "int8", "int4"]  # how plain numbers are packed
# How gate opens up within an expert. silu: silu(gate) · up; clamped_swiglu (gpt-oss): (up + 1) · g · sigmoid(1.702 · g)
# with g = min(gate, 7) and up from -7 to 7.
Gating = Literal["silu", "clamped_swiglu"]


class AttentionMetadata(NamedTuple):
    """Where the tokens of one forward pass lie. Built and checked once for each. (What each pass has is a named tuple,
    since those are made faster than frozen dataclasses.)

    Tokens of chunk c are rows `query_start[c]:query_start[c + 1]` of every [T, …] array; `context_len[c]` tokens of its
    sequence came before. Position p of that sequence lives, for the layers of KV group g, in block `block_tables[g, c,
    p // B]`, slot `p % B`.
    """

    positions: Array  # int32[T], position of each token in its own sequence
    query_start: Array  # int32[C + 1], ascending, query_start[0] = 0, query_start[C] = T
    context_len: Array  # int32[C]
    # int32[groups, C, any width]; blocks past a chunk's last position are never read, and under a window none that lies
    # before the first that the first query sees, though from the 64 positions, aligned, in which that is, they exist
    block_tables: Array


@dataclass(frozen=True, slots=True)
class KVShape:
    """One block of one layer holds B positions of G heads of D values, twice (keys and values).

    layers: that a block has room for: those of one KV group. groups: of each layer of the model, whose blocks hold its
    keys and values, where its group's layers before it leave it the next place; none: all layers are in one group.

    quantized: in int8, with a scale for each position and head of the keys, and of the values, by the rule of `int8.py`
    from what `act` would hold. Attention then multiplies whole numbers: queries are rounded once more, to 16 bits with
    a scale of their own, and so are probabilities (times the scales of their values), instead of to `act`.
    """

    layers: int
    block_size: int  # tokens per block, a multiple of 16
    kv_heads: int
    head_dim: int  # even
    quantized: bool = False
    groups: tuple[int, ...] = ()

    def place(self, layer: int) -> tuple[int, int]:
        """The group of one of the model's layers, and its place in that group's blocks."""
        if not self.groups:
            return 0, layer
        group = self.groups[layer]
        return group, self.groups[:layer].count(group)


@dataclass(frozen=True, slots=True)
class RopeTable:
    """Rotary embedding of the first R values of a head, R up to D, by halves (Hugging Face convention: x[i] pairs with
    x[i + R/2]); scaling is already in."""

    cos: Array  # float32[positions, R / 2]
    sin: Array  # float32[positions, R / 2]
    q_scale: Array | None = None  # float32[positions], what queries are multiplied by


@dataclass(frozen=True, slots=True)
class Routing:
    """How a token's float32 logits of the X experts become the `top_k` that it passes, in order of rank, and their
    weights (`models.spec.Router` has the meanings).

    Scores are the softmax or the sigmoid of the logits. Experts are picked by falling score + correction, on a tie (and
    for NaN, which is never larger) the lower number first. With more than one group only experts of the `top_groups`
    groups with the largest sums of their `group_best` best such values can be. Weights are the scores of the picked,
    divided by their sum, but at least 10⁻²⁰, if they are to be renormalized, times scale.
    """

    top_k: int
    scores: Literal["softmax", "sigmoid"] = "softmax"
    renormalize: bool = False
    correction: Array | None = None  # float32[X]
    groups: int = 1
    top_groups: int = 1
    group_best: int = 2
    scale: float = 1.0


class SamplingBatch(NamedTuple):
    """Settings of the S rows to sample, as arrays (struct of arrays, so that one native call serves all rows).

    Order of work per row, as vLLM does it: log-probabilities are taken from the untouched logits; then logits of tokens
    that are not `allowed` become -inf; then `bias`, then
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
    allowed: Sequence[Array | None]  # per row uint32[V / 32], bit i % 32 of word i // 32 lets token i be drawn; or all
    want_logprobs: Array  # bool[S]
    top_logprobs: Array  # int32[S], alternatives wanted beside the sampled token, 0 = none


class SampledBatch(NamedTuple):
    """What sampling yielded. Log-probabilities are valid only in rows that asked; alternatives beyond a row's count
    are not meaningful. Alternatives come in order of falling log-probability (ties by rising id)."""

    token_ids: Array  # int32[S]
    logprobs: Array  # float32[S], of the sampled token under the untouched logits
    top_ids: Array  # int32[S, widest row]
    top_logprobs: Array  # float32[S, widest row]


class ScoredBatch(NamedTuple):
    """Log-probabilities of S given tokens, with alternatives as in `SampledBatch`."""

    logprobs: Array  # float32[S]
    top_ids: Array  # int32[S, widest row]
    top_logprobs: Array  # float32[S, widest row]


class KVCache(Protocol):
    """Keys and values of all layers, in blocks."""

    @property
    def shape(self) -> KVShape: ...

    @property
    def num_blocks(self) -> int: ...

    @property
    def nbytes(self) -> int: ...


class Activation(Protocol):
    """Memory for rows of numbers, written anew by every pass. An operation reads the rows that were written last, and
    writes as many."""

    @property
    def nbytes(self) -> int: ...


# Packed weights: what a backend makes of them is its own.
Vector = Any  # float32[N]: the weight of a norm
Rope = Any  # a RopeTable
Linear = Any  # a weight matrix [N, K] with optional bias, packed; exposes .rows (N), .columns (K), .nbytes
GateUp = Any  # gate and up projections packed together; exposes .rows (F), .columns (E), .nbytes
Experts = Any  # a GateUp and a Linear [E, F] for each of X experts, and a Routing; exposes .count (X)
Table = Any  # an embedding table [V, E]; exposes .rows, .columns, .nbytes, and .linear (Linear, or None when untied)
RequestSlots = Any  # per running sequence: tokens, block table, settings


class PassResult(NamedTuple):
    """What one forward pass yielded, and when it was done (seconds of `time.perf_counter`)."""

    sampled: Sequence[Sampled]
    scored: Sequence[Scored]
    pooled: Sequence[Pooled]
    finished: float


class PendingPass(Protocol):
    def result(self) -> PassResult:
        """Wait for the device. Raises what broke the pass."""


class ForwardPass(Protocol):
    """A pass that is prepared: the operations over its tokens, in the order in which they are asked for. They may still
    be under way when a call returns; what an activation holds is nobody's business before `finish`."""

    num_tokens: int

    def embed(self, table: Table, out: Activation) -> None:
        """The pass's tokens → out float32[T, E]."""

    def rms_norm(self, x: Activation, weight: Vector, eps: float, out: Activation) -> None:
        """x float32[S, E], weight float32[E] → out act[S, E] = x / sqrt(mean(x²) + eps) · weight."""

    def layer_norm(self, x: Activation, weight: Vector, bias: Vector | None, eps: float, out: Activation) -> None:
        """x float32[S, E] → out act[S, E] = (x - mean(x)) / sqrt(variance(x) + eps) · weight + bias."""

    def to_act(self, x: Activation, out: Activation) -> None:
        """x float32[S, E] → out act[S, E]."""

    def add(self, x: Activation, norm: Vector | None, eps: float, factor: float, out: Activation) -> None:
        """x float32[S, E], or its RMS norm where there is a weight float32[E] for it: added, times `factor`, to out
        float32[S, E]."""

    def scale(self, x: Activation, factor: float) -> None:
        """x float32[S, N] → factor · x, in place."""

    def soft_cap(self, x: Activation, cap: float) -> None:
        """x float32[S, N] → cap · tanh(x / cap), in place. cap > 0."""

    def linear(self, x: Activation, weight: Linear, out: Activation) -> None:
        """x act[S, K] → out float32[S, N] = x · Wᵀ + bias."""

    def linear_residual(self, x: Activation, weight: Linear, out: Activation) -> None:
        """As `linear`, added to `out` (the residual stream)."""

    def gate_up(self, x: Activation, weight: GateUp, out: Activation, activation: Nonlinearity = "silu") -> None:
        """x act[S, E] → out act[S, F] = activation(x · gateᵀ) · (x · upᵀ), the product formed in float32. Not relu2."""

    def activate(self, x: Activation, activation: Nonlinearity, out: Activation) -> None:
        """x float32[S, F] → out act[S, F] = activation(x)."""

    def experts(self, x: Activation, logits: Activation, weight: Experts, out: Activation) -> None:
        """x act[T, E], logits float32[T, X] → out float32[T, E] plus the sum, in order of rank, of weight · expert(x)
        over the experts that the logits route a token to; an expert is `gate_up` (with its gating), then `linear`."""

    def add_gated(self, x: Activation, gate: Activation, out: Activation) -> None:
        """out float32[T, E] plus sigmoid(gate float32[T, 1]) · x float32[T, E]."""

    def rope_and_write_kv(
        self,
        qkv: Activation,
        layer: int,
        rope: Rope | None,
        q_norm: Vector | None,
        k_norm: Vector | None,
        eps: float,
        q_out: Activation,
    ) -> None:
        """qkv float32[T, (H + 2G)·D], heads in the order q, k, v. Applies the optional RMS norms, of each
        head (float32[D]) or of all at once (float32[H·D], float32[G·D]), rotates q and k unless `rope` is None, writes
        k and v of every token into the KV cache, and q into q_out act[T, H·D]. All keys and values of the pass are
        written before any is read: chunks may read each other's blocks."""

    def attention(
        self,
        q: Activation,
        layer: int,
        scale: float,
        window: int,
        out: Activation,
        soft_cap: float = 0.0,
        sinks: Vector | None = None,
    ) -> None:
        """q act[T, H·D] → out act[T, H·D]. A query at position p sees positions max(0, p - window + 1) … p of its own
        chunk's block table; window 0 sees all. Query head h reads key/value head h // (H / G). In bfloat16 the
        probabilities are rounded before they meet the values (over quantized ones, see `KVShape`); their sum is not.
        scale > 0. soft_cap c > 0: a scaled score becomes c · tanh(score / c). sinks float32[H]: a score of each head,
        neither scaled nor capped, that takes its share of the probabilities and has no value."""

    def gather(self, x: Activation, places: Sequence[int], out: Activation) -> None:
        """Rows of x float32[T, E] at `places` (indices into the pass's tokens) → out float32[S, E]."""

    def sample(self, logits: Activation, places: Sequence[int]) -> None:
        """Draws what follows the tokens at `places`, which rise, each as if all tokens before it were the slot's,
        drafts too; logits are the rows of float32[S, V], which may be overwritten. Of a chunk that has been drawn for
        whole, the slot keeps what was drawn up to the first draft that was wrong."""

    def score(self, logits: Activation, places: Sequence[int]) -> None:
        """Log-probabilities of the known tokens that follow those at `places`, which rise; logits as for `sample`."""

    def pool(self, hidden: Activation, places: Sequence[int]) -> None:
        """The vectors of the tokens at `places`: rows of act[S, E], as their slots want them."""

    def finish(self) -> PendingPass: ...


class Device(Protocol):
    """What a runner needs of a backend, whatever computes between tokens and logits: the KV cache, request slots, and
    passes over them."""

    name: str  # e.g. "reference", "native avx512_bf16"
    dtype: DType
    threads: int
    depth: int  # steps worth having in flight: 2 where `finish` returns before the device is done

    def bytes_per_block(self, shape: KVShape) -> int: ...

    def kv_cache(self, shape: KVShape, num_blocks: int) -> KVCache: ...

    def request_slots(self, capacity: Capacity, padding_block: int) -> RequestSlots:
        """`capacity.max_rows` slots, and one more whose tokens are padding: it writes to `padding_block` alone."""

    # -- per step -----------------------------------------------------------------------------------------------
    def copy_blocks(self, kv_cache: KVCache, sources: Sequence[int], destinations: Sequence[int]) -> None:
        """Copy whole blocks (all layers), in order."""

    def prepare(
        self,
        slots: RequestSlots,
        kv_cache: KVCache,
        chunks: Sequence[Chunk],
        new: Sequence[NewRow] = (),
        freed: Sequence[int] = (),
    ) -> ForwardPass:
        """Begins a pass over the tokens of `chunks`. Before it, slots are given up, then taken; the chunks' new blocks
        are appended to their slots' tables. Raises ValueError for positions or tables that cannot be."""

    def discard(self, slots: RequestSlots, rows: Sequence[int]) -> None:
        """The pass of these slots failed: what is computed for them before they are taken anew counts for nothing, and
        reads and writes no block of anybody."""


@runtime_checkable
class Backend(Device, Protocol):
    """Weights are given as a checkpoint has them (`matrices.py`), [N, K], and may be read-only memory maps. Plain
    numbers are packed as `hold` says: converted to `dtype`, or quantized to int8, or to int4 in groups of `group`
    inputs. What comes quantized is packed as it is. Packing copies, so that the source can be released at once."""

    def pack_vector(self, values: Array) -> Vector:
        """values float32[N]."""

    def pack_rope(self, table: RopeTable) -> Rope: ...

    def pack_linear(
        self, parts: Sequence[Matrix], bias: Array | None = None, hold: Hold = "act", group: int = 32
    ) -> Linear:
        """`parts` are stacked along N (q, k, v) without building the stack, and may be held in different ways. bias
        float32[N] or None. Raises ValueError for more than 133,144 columns in int8, whose sums could pass 32 bits."""

    def pack_gate_up(
        self, gate: Matrix, up: Matrix, hold: Hold = "act", group: int = 32, bias: Array | None = None
    ) -> GateUp:
        """Both are held in one way: where they come in two, in that which `matrices.alike` makes of them. bias:
        float32[2, F], of gate and of up."""

    def pack_experts(
        self, gate_up: Sequence[GateUp], down: Sequence[Linear], routing: Routing, gating: Gating = "silu"
    ) -> Experts:
        """Of X experts the matrices that this backend packed, all [F, E] and held alike, and all [E, F] likewise
        (of int4 some may have offsets and others none, but codes stand for the same). Raises ValueError for others, and
        for a routing that they do not fit."""

    def pack_table(self, table: Matrix, tied: bool, hold: Hold = "act", group: int = 32) -> Table:
        """Embedding table. Tied: also usable as the output projection through `.linear`, and held once; only then it
        may be quantized (else ValueError)."""

    def activation(self, rows: int, width: int, kind: Literal["act", "float32"]) -> Activation:
        """Memory for up to `rows` rows; pages that no pass reaches are never touched."""
