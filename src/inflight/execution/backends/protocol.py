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

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, Protocol, runtime_checkable

import numpy as np

from inflight.core.types.plan import Capacity, Chunk, NewRow, Pooled, Sampled, Scored
from inflight.execution.backends.matrices import Matrix, Rows

Array = np.ndarray[Any, Any]
DType = Literal["bfloat16", "float32"]
# Activation functions. gelu_tanh: x · sigmoid(2 · √(2/π) · (x + 0.044715 · x³)), which is gelu by tanh; relu2: the
# square of max(x, 0). xielu, with parameters p and n that a model learns: x / 2 + p · x² of what is positive,
# x / 2 + n · (exp(min(x, -10⁻⁶)) - 1 - x) of the rest.
Nonlinearity = Literal["silu", "gelu_tanh", "relu2", "xielu"]
# Which plain matrices a model's loader quantizes: none, those of the layers, or the output projection too, and with it
# a tied embedding table.
Quantization = Literal["none", "int8", "int8-all", "int4", "int4-all"]
Hold = Literal["act", "int8", "int4"]  # how plain numbers are packed
# How gate opens up within an expert. silu, gelu_tanh: of gate, times up; clamped_swiglu (gpt-oss): (up + 1) · g ·
# sigmoid(1.702 · g) with g = min(gate, 7) and up from -7 to 7.
Gating = Literal["silu", "gelu_tanh", "clamped_swiglu"]


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
class KVLayer:
    """What one layer keeps of a token in the blocks of its KV group: of each head a key of `key_dim` values and a value
    of `value_dim`. value_dim 0: values are a part of the keys (latent attention: one head, of the compressed vector and
    the rotated key), and none are kept."""

    group: int
    kv_heads: int
    key_dim: int  # even
    value_dim: int

    @property
    def elements(self) -> int:
        """Of one token."""
        return self.kv_heads * (self.key_dim + self.value_dim)


@dataclass(frozen=True, slots=True)
class KVShape:
    """What a block is: one contiguous run of bytes, which holds B positions of every layer of one KV group, each layer
    at a place of its own with heads and widths of its own, one after the other in the order of the layers. A block of
    any group takes the bytes of the largest, so that one pool serves all.

    layers: of each layer of the model; None for one that takes no place in any block: it keeps a state of fixed size
    instead, or reads what an earlier layer has written.

    quantized: in int8, with a scale for each position and head of the keys, and of the values if there are any, by the
    rule of `int8.py` from what `act` would hold. Attention then multiplies whole numbers: queries are rounded once
    more, to 16 bits with a scale of their own, and so are probabilities (times the scales of their values), instead of
    to `act`.
    """

    block_size: int  # tokens per block, a multiple of 16
    layers: tuple[KVLayer | None, ...]
    quantized: bool = False

    @classmethod
    def uniform(
        cls,
        layers: int,
        block_size: int,
        kv_heads: int,
        head_dim: int,
        quantized: bool = False,
        groups: Sequence[int] = (),
    ) -> KVShape:
        """Of layers that all keep alike. groups: of each; none: one of all."""
        return cls(
            block_size,
            tuple(KVLayer(group, kv_heads, head_dim, head_dim) for group in groups or [0] * layers),
            quantized,
        )

    @property
    def groups(self) -> int:
        return 1 + max((one.group for one in self.layers if one is not None), default=0)

    def of(self, layer: int) -> KVLayer:
        """Raises ValueError for a layer that takes no place."""
        found = self.layers[layer] if 0 <= layer < len(self.layers) else None
        if found is None:
            raise ValueError(f"layer {layer} is not in the KV cache")
        return found

    def offsets(self, nbytes: Callable[[KVLayer], int]) -> tuple[list[int], int]:
        """Where each layer begins in a block (0 for one without a place), and what a block takes. nbytes: of a layer's
        place in a block, as the backend holds it."""
        ends, found = [0] * self.groups, []
        for layer in self.layers:
            found.append(0 if layer is None else ends[layer.group])
            if layer is not None:
                ends[layer.group] += nbytes(layer)
        return found, max(ends)


@dataclass(frozen=True, slots=True)
class LayerState:
    """What a recurrent layer keeps of a sequence, however long: the last `inputs` inputs of its convolution over
    `channels` channels, in `act`, and of each of `heads` heads a float32 matrix [key_dim, value_dim]. Before any token
    all of it is 0."""

    inputs: int
    channels: int
    heads: int = 0
    key_dim: int = 0
    value_dim: int = 0


class StateMetadata(NamedTuple):
    """With which states the chunks of a pass go on, and where copies of them are to be left."""

    rows: Array  # int32[C], whose live state each chunk reads and leaves behind
    snapshot_start: Array  # int32[C + 1], ascending: the entries below that are chunk c's, snapshot_start[c]:[c + 1]
    positions: Array  # int32[…], rising within a chunk: the state is copied as it is after so many of its tokens
    slots: Array  # int32[…], to this snapshot


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
    divided by their sum, but at least 10⁻²⁰, if they are to be renormalized, times scale, times the expert's own.
    """

    top_k: int
    scores: Literal["softmax", "sigmoid"] = "softmax"
    renormalize: bool = False
    correction: Array | None = None  # float32[X]
    groups: int = 1
    top_groups: int = 1
    group_best: int = 2
    scale: float = 1.0
    expert_scale: Array | None = None  # float32[X]


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
    """Keys and values of all layers, in blocks: [blocks, bytes of a block]."""

    @property
    def shape(self) -> KVShape: ...

    @property
    def num_blocks(self) -> int: ...

    @property
    def nbytes(self) -> int: ...


class StateCache(Protocol):
    """What recurrent layers keep: a live state of all of them for each row, and snapshots, which are copies of such."""

    @property
    def nbytes(self) -> int: ...

    def begin(self, row: int, snapshot: int) -> None:
        """The row's state becomes a copy of the snapshot."""


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
Heads = Any  # a weight matrix [N, K] for each of H heads; exposes .count (H), .rows (N), .columns (K), .nbytes
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
        float32[S, E]. A weight float32[E / n] norms each of n equal parts of a row by itself."""

    def clear(self, out: Activation) -> None:
        """out float32[T, N] = 0."""

    def scale(self, x: Activation, factor: float) -> None:
        """x float32[S, N] → factor · x, in place."""

    def soft_cap(self, x: Activation, cap: float) -> None:
        """x float32[S, N] → cap · tanh(x / cap), in place. cap > 0."""

    def linear(self, x: Activation, weight: Linear, out: Activation) -> None:
        """x act[S, K] → out float32[S, N] = x · Wᵀ + bias."""

    def linear_residual(self, x: Activation, weight: Linear, out: Activation) -> None:
        """As `linear`, added to `out` (the residual stream)."""

    def gate_up(self, x: Activation, weight: GateUp, out: Activation, activation: Nonlinearity = "silu") -> None:
        """x act[S, E] → out act[S, F] = activation(x · gateᵀ) · (x · upᵀ), the product formed in float32. silu or
        gelu_tanh."""

    def activate(
        self,
        x: Activation,
        activation: Nonlinearity,
        out: Activation,
        parameters: Vector | None = None,
        by: Activation | None = None,
        first: int = 0,
    ) -> None:
        """x float32[S, F] → out act[S, F] = activation(x); times columns first … first + F - 1 of `by` float32[S, N],
        where that is given, the product formed in float32. parameters: float32[2], the p and n of xielu."""

    def experts(self, x: Activation, logits: Activation, weight: Experts, out: Activation) -> None:
        """x act[T, E], logits float32[T, X] → out float32[T, E] plus the sum, in order of rank, of weight · expert(x)
        over the experts that the logits route a token to; an expert is `gate_up` (with its gating), then `linear`."""

    def by_head(self, x: Activation, weight: Heads, out: Activation) -> None:
        """x act[T, H·K] → out act[T, H·M], M ≥ N: the first N numbers of each head = x of the head · Wᵀ of the head.
        The others stay as they are."""

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
        norms_last: bool = False,
        v_norm: Vector | None = None,
    ) -> None:
        """qkv float32[T, (H + 2G)·D], heads in the order q, k, v. Applies the optional RMS norms, of each
        head (float32[D]) or of all at once (float32[H·D], float32[G·D]; of values of each head), rotates q and k unless
        `rope` is None (norms_last: first that, then their norms, which are of each head), writes k and v of every token
        into the KV cache, and q into q_out act[T, H·D]. All keys and values of the pass are written before any is read:
        chunks may read each other's blocks. qkv float32[T, (H + G)·D]: keys as they come are the values, too. qkv
        float32[T, H·D]: nothing is written; the queries will read what an earlier layer, `layer`, wrote."""

    def rope_and_write_latent(
        self,
        q: Activation,
        kv: Activation,
        layer: int,
        rope: Rope,
        kv_norm: Vector,
        eps: float,
        nope_out: Activation,
        q_out: Activation,
    ) -> None:
        """Latent attention, whose cache holds of a token one key and no values (`KVLayer`): C compressed numbers, then
        R rotated ones. q float32[T, H·(N + R)], kv float32[T, C + R]: the RMS norm of the first C of kv and the rotated
        rest go into the cache; of each head of q the first N into nope_out act[T, H·N], and the rotated rest into the
        last R of the head in q_out act[T, H·(C + R)], whose first C stay as they are (`by_head` writes them)."""

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

    def gate(self, gate: Activation, x: Activation) -> None:
        """x act[S, N] → x · sigmoid(gate float32[S, N]), in place."""

    def convolve(self, x: Activation, layer: int, weight: Vector, out: Activation) -> None:
        """x float32[T, at least C], of which the first C numbers are the inputs of a depthwise convolution over the
        last K = inputs + 1 tokens (`LayerState`), C its channels → out float32[T, C] = silu of its sums.

        weight float32[K · C], of the oldest input first. Inputs are rounded to `act`; those before a chunk are its
        row's state, or 0 where it begins at position 0. Sums are float32, from the oldest input on. The last inputs are
        left in the state, and in snapshots as they are due."""

    def convolve_gated(self, x: Activation, layer: int, weight: Vector, bias: Vector | None, out: Activation) -> None:
        """x float32[T, 3 · C], the numbers B of all channels, then G, then X → out act[T, C] = G · (sums + bias), where
        the inputs are B · X; else as `convolve`."""

    def delta_rule(
        self,
        qkv: Activation,
        projected: Activation,
        gates: Activation,
        layer: int,
        key_heads: int,
        decay: Vector,
        step_bias: Vector,
        norm: Vector,
        eps: float,
        out: Activation,
    ) -> None:
        """The gated delta rule of H heads with a state S float32[key_dim, value_dim] each, token by token, and a gated
        norm of what comes out (Yang et al., "Gated Delta Networks", 2024).

        qkv float32[T, C]: queries and keys of `key_heads` heads, values of H. projected float32[T, C + H · value_dim]:
        behind its first C numbers the gate z of each value. gates float32[T, 2 · H]: b and a of each head. decay,
        step_bias float32[H]; norm float32[value_dim]. A head of keys serves H / key_heads neighbouring heads.

        q and k are divided by sqrt(Σ x² + 10⁻⁶), q by sqrt(key_dim) too; β = sigmoid(b); d = exp(decay · softplus(a +
        step_bias)). S ← d · S + k ⊗ β (v - d · kS); o = qS. out act[T, H · value_dim] = o / sqrt(mean(o²) + eps) · norm
        · silu(z). Everything before `out` is float32. A chunk that begins at position 0 has S = 0 before it; what S is
        after it, and where snapshots are due, is left as by `convolve`."""

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

    def request_slots(self, capacity: Capacity, padding_block: int, states: StateCache | None = None) -> RequestSlots:
        """`capacity.max_rows` slots, and one more whose tokens are padding: it writes to `padding_block` alone. states:
        of as many rows, and of `capacity.state_snapshots` snapshots, where the model has recurrent layers."""

    # -- per step -----------------------------------------------------------------------------------------------
    def copy_blocks(self, kv_cache: KVCache, sources: Sequence[int], destinations: Sequence[int]) -> None:
        """Copy whole blocks, in order."""

    def prepare(
        self,
        slots: RequestSlots,
        kv_cache: KVCache,
        chunks: Sequence[Chunk],
        new: Sequence[NewRow] = (),
        freed: Sequence[int] = (),
    ) -> ForwardPass:
        """Begins a pass over the tokens of `chunks`. Before it, slots are given up, then taken, and those that begin
        from a snapshot get their state; the chunks' new blocks are appended to their slots' tables. Raises ValueError
        for positions or tables that cannot be, and where a state is not that of the position at which its chunk
        starts."""

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

    def pack_heads(self, weights: Sequence[Linear]) -> Heads:
        """Matrices without biases that this backend packed, all [N, K] and held alike. Raises ValueError for others."""

    def pack_table(self, table: Matrix, hold: Hold = "act", group: int = 32) -> Table:
        """Embedding table that is the output projection, too, through `.linear`, and held once."""

    def pack_rows(self, pieces: Iterable[Rows], rows: int, columns: int) -> Table:
        """Embedding table that only gives rows, in `dtype`. pieces: plain numbers or blocks that stand for them, rows
        of it in their order, which are let go one after the other. Raises ValueError where they are not the table's
        shape."""

    def bytes_per_state(self, layers: Sequence[LayerState | None]) -> int:
        """Of one state of all layers; None: a layer without."""

    def state_cache(self, layers: Sequence[LayerState | None], rows: int, snapshots: int) -> StateCache:
        """Live states of `rows` rows, that of padding included, and of so many snapshots."""

    def activation(self, rows: int, width: int, kind: Literal["act", "float32"]) -> Activation:
        """Memory for up to `rows` rows; pages that no pass reaches are never touched."""
