"""The backend in numpy: slow, readable, and the definition of what is right.

Knows the same contract as the kernels (`protocol.py`) and rounds to bf16 at the points that it names: activations,
keys, values and weights are held in bf16, everything between is float32. Two more points where the fast kernels round,
so that both stay comparable: attention's probabilities are rounded to `act` before they meet the values (their sum is
not), and nothing else. Over int8 keys and values, where the kernels round to 16 bits, it rounds neither queries nor
probabilities.

Batch invariance is had by brute force: every token, query and sampled row is computed alone, in a call whose shapes
depend on itself only.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np

from inflight.core.types.plan import Chunk
from inflight.execution.backends import int4, int8, reference_sampling
from inflight.execution.backends.bf16 import from_bf16, to_bf16
from inflight.execution.backends.host import HostBackend, HostPass
from inflight.execution.backends.int4 import HeldInt4
from inflight.execution.backends.matrices import (
    BlockMatrix,
    Int4Matrix,
    Int8Matrix,
    Matrix,
    ReorderedMatrix,
    Rows,
    alike,
    dequantized,
    in_order,
)
from inflight.execution.backends.protocol import (
    Array,
    DType,
    Gating,
    Hold,
    KVCache,
    KVLayer,
    KVShape,
    LayerState,
    Nonlinearity,
    RopeTable,
    Routing,
    SampledBatch,
    SamplingBatch,
    ScoredBatch,
    StateMetadata,
)
from inflight.execution.backends.reference_routing import route, sigmoid
from inflight.execution.backends.slots import PassInputs, RequestSlots

Held = Array | Int8Matrix | HeldInt4  # `act`, or quantized


@dataclass(frozen=True, slots=True)
class ReferenceLinear:
    """A weight matrix [N, K], of parts that are stacked along N and may be held in different ways, and its bias."""

    parts: tuple[Held, ...]
    bias: Array | None

    @property
    def rows(self) -> int:
        return sum(part.shape[0] for part in self.parts)

    @property
    def columns(self) -> int:
        return int(self.parts[0].shape[1])

    @property
    def nbytes(self) -> int:
        return sum(part.nbytes for part in self.parts) + (0 if self.bias is None else self.bias.nbytes)


@dataclass(frozen=True, slots=True)
class ReferenceGateUp:
    """Gate and up projections [F, E]."""

    gate: ReferenceLinear
    up: ReferenceLinear

    @property
    def rows(self) -> int:
        return self.gate.rows

    @property
    def columns(self) -> int:
        return self.gate.columns

    @property
    def nbytes(self) -> int:
        return self.gate.nbytes + self.up.nbytes


@dataclass(frozen=True, slots=True)
class ReferenceExperts:
    gate_up: tuple[ReferenceGateUp, ...]
    down: tuple[ReferenceLinear, ...]
    routing: Routing
    gating: Gating

    @property
    def count(self) -> int:
        return len(self.down)


@dataclass(frozen=True, slots=True)
class ReferenceHeads:
    """A matrix [N, K] for each head."""

    matrices: tuple[ReferenceLinear, ...]

    @property
    def count(self) -> int:
        return len(self.matrices)

    @property
    def rows(self) -> int:
        return self.matrices[0].rows

    @property
    def columns(self) -> int:
        return self.matrices[0].columns

    @property
    def nbytes(self) -> int:
        return sum(matrix.nbytes for matrix in self.matrices)


@dataclass(frozen=True, slots=True)
class ReferenceTable:
    """An embedding table [V, E]; tied, the same memory is the output projection."""

    weight: Held
    linear: ReferenceLinear | None

    @property
    def rows(self) -> int:
        return int(self.weight.shape[0])

    @property
    def columns(self) -> int:
        return int(self.weight.shape[1])

    @property
    def nbytes(self) -> int:
        return int(self.weight.nbytes) if self.linear is None else self.linear.nbytes


@dataclass(frozen=True, slots=True)
class ReferenceHeld:
    """One layer's keys or values, views of the blocks: [blocks, B, G, D] of `act`, or of int8 with scales [blocks, B,
    G]."""

    values: Array
    scales: Array | None


@dataclass(slots=True)
class ReferenceKVCache:
    """memory: uint8[blocks, bytes of a block]. Of a layer a block holds, from the layer's offset on, keys [B, G, D],
    then values; quantized, the scales of keys [B, G], then those of values. keys: of each layer with a place; values:
    of each that keeps any."""

    shape: KVShape
    num_blocks: int
    dtype: DType
    memory: Array = field(init=False)
    keys: dict[int, ReferenceHeld] = field(init=False, default_factory=dict)
    values: dict[int, ReferenceHeld] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        offsets, block_bytes = self.shape.offsets(partial(_place_bytes, self.shape, self.dtype))
        self.memory = np.zeros((self.num_blocks, block_bytes), np.uint8)
        item = _item(self.dtype, self.shape.quantized)
        for index, (layer, keys) in enumerate(zip(self.shape.layers, offsets, strict=True)):
            if layer is None:
                continue
            heads = self.shape.block_size * layer.kv_heads
            values = keys + heads * layer.key_dim * item.itemsize
            scales = values + heads * layer.value_dim * item.itemsize
            self.keys[index] = self._held(layer, layer.key_dim, keys, scales)
            if layer.value_dim:
                self.values[index] = self._held(layer, layer.value_dim, values, scales + 4 * heads)

    def _held(self, layer: KVLayer, width: int, numbers: int, scales: int) -> ReferenceHeld:
        """Where in a block they begin."""
        sizes = (self.num_blocks, self.shape.block_size, layer.kv_heads)
        item = _item(self.dtype, self.shape.quantized)
        return ReferenceHeld(
            self._view((*sizes, width), item, numbers),
            self._view(sizes, np.dtype(np.float32), scales) if self.shape.quantized else None,
        )

    def _view(self, sizes: tuple[int, ...], item: np.dtype[Any], offset: int) -> Array:
        """[blocks, …], of every block from the same place on."""
        within = [int(np.prod(sizes[axis + 1 :])) * item.itemsize for axis in range(1, len(sizes))]
        return np.ndarray(sizes, item, self.memory, offset, (self.memory.shape[1], *within))

    @property
    def nbytes(self) -> int:
        return int(self.memory.nbytes)


def _item(dtype: DType, quantized: bool) -> np.dtype[Any]:
    return np.dtype(np.int8 if quantized else np.uint16 if dtype == "bfloat16" else np.float32)


def _place_bytes(shape: KVShape, dtype: DType, layer: KVLayer) -> int:
    scales = 4 * layer.kv_heads * (2 if layer.value_dim else 1) if shape.quantized else 0
    return shape.block_size * (layer.elements * _item(dtype, shape.quantized).itemsize + scales)


class ReferenceStates:
    """Of each layer the kept inputs act[states, inputs, channels], and matrices [states, heads, key_dim, value_dim]: of
    rows, then of snapshots."""

    def __init__(self, layers: Sequence[LayerState | None], rows: int, snapshots: int, dtype: DType):
        count = rows + snapshots
        of = [one or LayerState(0, 0) for one in layers]
        act = np.uint16 if dtype == "bfloat16" else np.float32
        self.first_snapshot = rows
        self.inputs = [np.zeros((count, one.inputs, one.channels), act) for one in of]
        self.matrices = [np.zeros((count, one.heads, one.key_dim, one.value_dim), np.float32) for one in of]

    @property
    def nbytes(self) -> int:
        return sum(one.nbytes for one in (*self.inputs, *self.matrices))

    def begin(self, row: int, snapshot: int) -> None:
        for one in (*self.inputs, *self.matrices):
            one[row] = one[self.first_snapshot + snapshot]


@dataclass(slots=True)
class ReferenceActivation:
    """rows: those that were written last."""

    array: Array  # [capacity, width]
    rows: int

    @property
    def nbytes(self) -> int:
        return int(self.array.nbytes)

    @property
    def written(self) -> Array:
        return self.array[: self.rows]

    def write(self, values: Array) -> None:
        self.rows = len(values)
        self.array[: self.rows] = values


class ReferenceBackend(HostBackend):
    """Backend over numpy. `threads` is accepted and ignored."""

    def __init__(self, dtype: DType, threads: int = 1) -> None:
        if dtype not in ("bfloat16", "float32"):
            raise ValueError(f"dtype must be bfloat16 or float32, not {dtype!r}")
        self.name = "reference"
        self.dtype: DType = dtype
        self.threads = threads

    def _convert(self, source: Array) -> Array:
        """A checkpoint's array → `dtype`, copied."""
        if source.dtype == np.uint16 and self.dtype == "bfloat16":
            return source.copy()
        return hold(self.dtype, dequantized(source))

    # -- once, at load ----------------------------------------------------------------------------------------------
    def pack_linear(
        self, parts: Sequence[Matrix], bias: Array | None = None, hold: Hold = "act", group: int = 32
    ) -> ReferenceLinear:
        held = tuple(self._held(part, hold, group) for part in parts)
        return ReferenceLinear(held, None if bias is None else np.array(bias, np.float32))

    def pack_gate_up(
        self, gate: Matrix, up: Matrix, hold: Hold = "act", group: int = 32, bias: Array | None = None
    ) -> ReferenceGateUp:
        gate, up = alike(gate, up, hold)
        of_gate, of_up = (None, None) if bias is None else bias
        return ReferenceGateUp(
            self.pack_linear([gate], of_gate, hold, group), self.pack_linear([up], of_up, hold, group)
        )

    def pack_experts(
        self,
        gate_up: Sequence[ReferenceGateUp],
        down: Sequence[ReferenceLinear],
        routing: Routing,
        gating: Gating = "silu",
    ) -> ReferenceExperts:
        return ReferenceExperts(tuple(gate_up), tuple(down), routing, gating)

    def pack_heads(self, weights: Sequence[ReferenceLinear]) -> ReferenceHeads:
        return ReferenceHeads(tuple(weights))

    def pack_table(self, table: Matrix, hold: Hold = "act", group: int = 32) -> ReferenceTable:
        linear = self.pack_linear([in_order(table)], hold=hold, group=group)
        return ReferenceTable(linear.parts[0], linear)

    def pack_rows(self, pieces: Iterable[Rows], rows: int, columns: int) -> ReferenceTable:
        plain = (piece.numbers() if isinstance(piece, BlockMatrix) else piece for piece in pieces)
        held = np.concatenate([self._convert(piece) for piece in plain])
        if held.shape != (rows, columns):
            raise ValueError(f"the pieces of a table have shape {list(held.shape)} together, not {[rows, columns]}")
        return ReferenceTable(held, None)

    def _held(self, matrix: Matrix, hold: Hold, group: int) -> Held:
        if isinstance(matrix, BlockMatrix):
            return self._held(matrix.unpacked(), hold, group)
        if isinstance(matrix, Int8Matrix):
            return Int8Matrix(matrix.values.copy(), matrix.scales.copy())
        if isinstance(matrix, ReorderedMatrix):
            return replace(int4.hold(_copied(matrix.matrix)), order=matrix.order.copy())
        if isinstance(matrix, Int4Matrix):
            return int4.hold(_copied(matrix))
        if hold == "int8":
            return Int8Matrix(*int8.quantize(dequantized(matrix)))
        if hold == "int4":
            return int4.hold(int4.quantize(dequantized(matrix), group))
        return self._convert(matrix)

    def bytes_per_block(self, shape: KVShape) -> int:
        return shape.offsets(partial(_place_bytes, shape, self.dtype))[1]

    def kv_cache(self, shape: KVShape, num_blocks: int) -> ReferenceKVCache:
        return ReferenceKVCache(shape, num_blocks, self.dtype)

    def bytes_per_state(self, layers: Sequence[LayerState | None]) -> int:
        return ReferenceStates(layers, 1, 0, self.dtype).nbytes

    def state_cache(self, layers: Sequence[LayerState | None], rows: int, snapshots: int) -> ReferenceStates:
        return ReferenceStates(layers, rows, snapshots, self.dtype)

    def pack_vector(self, values: Array) -> Array:
        return np.array(values, np.float32)

    def pack_rope(self, table: RopeTable) -> RopeTable:
        return table

    # -- per step ---------------------------------------------------------------------------------------------------
    def copy_blocks(self, kv_cache: KVCache, sources: Sequence[int], destinations: Sequence[int]) -> None:
        assert isinstance(kv_cache, ReferenceKVCache)
        for source, destination in zip(sources, destinations, strict=True):
            kv_cache.memory[destination] = kv_cache.memory[source]

    def activation_of(self, array: Array) -> ReferenceActivation:
        return ReferenceActivation(array, len(array))

    def forward_pass(
        self, inputs: PassInputs, kv_cache: KVCache, slots: RequestSlots, chunks: Sequence[Chunk]
    ) -> ReferencePass:
        assert isinstance(kv_cache, ReferenceKVCache)
        return ReferencePass(self, inputs, kv_cache, slots, chunks)

    def sample(self, logits: Array, batch: SamplingBatch) -> SampledBatch:
        return reference_sampling.sample(logits, batch)

    def score(self, logits: Array, token_ids: Array, top_logprobs: Array) -> ScoredBatch:
        return reference_sampling.score(logits, token_ids, top_logprobs)


class ReferencePass(HostPass):
    """The operations of one pass."""

    def __init__(
        self,
        backend: ReferenceBackend,
        inputs: PassInputs,
        kv_cache: ReferenceKVCache,
        slots: RequestSlots,
        chunks: Sequence[Chunk],
    ):
        super().__init__(backend, inputs, slots, chunks)
        self._dtype, self._kv_cache = backend.dtype, kv_cache

    def _hold(self, values: Array) -> Array:
        return hold(self._dtype, values)

    def _read(self, held: Array) -> Array:
        """`act` → float32."""
        return from_bf16(held) if self._dtype == "bfloat16" else np.asarray(held, np.float32)

    def embed(self, table: ReferenceTable, out: ReferenceActivation) -> None:
        ids, weight = self._inputs.token_ids, table.weight
        if isinstance(weight, Int8Matrix):
            out.write(weight.values[ids].astype(np.float32) * weight.scales[ids, None])
        elif isinstance(weight, HeldInt4):
            out.write(weight.rows(ids))
        else:
            out.write(self._read(weight[ids]))

    def rms_norm(self, x: ReferenceActivation, weight: Array, eps: float, out: ReferenceActivation) -> None:
        out.write(self._hold(_normalised(x.written, weight, eps)))

    def layer_norm(
        self, x: ReferenceActivation, weight: Array, bias: Array | None, eps: float, out: ReferenceActivation
    ) -> None:
        centred = x.written - np.mean(x.written, axis=1, keepdims=True, dtype=np.float64).astype(np.float32)
        variance = np.mean(np.square(centred, dtype=np.float64), axis=1, keepdims=True).astype(np.float32)
        normed = centred / np.sqrt(variance + np.float32(eps)) * weight
        out.write(self._hold(normed if bias is None else normed + bias))

    def to_act(self, x: ReferenceActivation, out: ReferenceActivation) -> None:
        out.write(self._hold(x.written))

    def add(
        self, x: ReferenceActivation, norm: Array | None, eps: float, factor: float, out: ReferenceActivation
    ) -> None:
        added = x.written
        if norm is not None:
            added = _normalised(added.reshape(-1, len(norm)), norm, eps).reshape(added.shape)
        out.written[:] += np.float32(factor) * added

    def clear(self, out: ReferenceActivation) -> None:
        out.write(np.zeros((self.num_tokens, out.array.shape[1]), np.float32))

    def scale(self, x: ReferenceActivation, factor: float) -> None:
        x.written[:] *= np.float32(factor)

    def soft_cap(self, x: ReferenceActivation, cap: float) -> None:
        x.written[:] = _capped(x.written, cap)

    def linear(self, x: ReferenceActivation, weight: ReferenceLinear, out: ReferenceActivation) -> None:
        out.write(self._product(self._read(x.written), weight))

    def linear_residual(self, x: ReferenceActivation, weight: ReferenceLinear, out: ReferenceActivation) -> None:
        out.written[:] += self._product(self._read(x.written), weight)

    def gate_up(
        self,
        x: ReferenceActivation,
        weight: ReferenceGateUp,
        out: ReferenceActivation,
        activation: Nonlinearity = "silu",
    ) -> None:
        out.write(self._gated(self._read(x.written), weight, activation))

    def activate(
        self,
        x: ReferenceActivation,
        activation: Nonlinearity,
        out: ReferenceActivation,
        parameters: Array | None = None,
        by: ReferenceActivation | None = None,
        first: int = 0,
    ) -> None:
        activated, width = _activated(x.written, activation, parameters), x.array.shape[1]
        out.write(self._hold(activated if by is None else activated * by.written[:, first : first + width]))

    def experts(
        self,
        x: ReferenceActivation,
        logits: ReferenceActivation,
        weight: ReferenceExperts,
        out: ReferenceActivation,
    ) -> None:
        tokens = self._read(x.written)
        for t, routed in enumerate(logits.written):
            token, total = tokens[t : t + 1], np.zeros(out.array.shape[1], np.float32)
            for expert, share in zip(*route(routed, weight.routing), strict=True):
                inner = self._read(self._gated(token, weight.gate_up[expert], weight.gating))
                total += share * self._product(inner, weight.down[expert])[0]
            out.array[t] += total

    def by_head(self, x: ReferenceActivation, weight: ReferenceHeads, out: ReferenceActivation) -> None:
        out.rows = x.rows
        heads = self._read(x.written).reshape(x.rows, weight.count, weight.columns)
        into = out.written.reshape(x.rows, weight.count, -1)
        for head, matrix in enumerate(weight.matrices):
            into[:, head, : weight.rows] = self._hold(self._product(heads[:, head], matrix))

    def add_gated(self, x: ReferenceActivation, gate: ReferenceActivation, out: ReferenceActivation) -> None:
        with np.errstate(over="ignore"):
            out.written[:] += x.written / (np.float32(1) + np.exp(-gate.written))

    def _gated(self, tokens: Array, weight: ReferenceGateUp, gating: Gating | Nonlinearity) -> Array:
        """float32[S, E] → act[S, F]."""
        gate, up = self._product(tokens, weight.gate), self._product(tokens, weight.up)
        if gating == "clamped_swiglu":
            gate, up = np.minimum(gate, 7), np.clip(up, -7, 7)
            with np.errstate(over="ignore"):
                return self._hold(gate / (np.float32(1) + np.exp(np.float32(-1.702) * gate)) * (up + 1))
        return self._hold(_activated(gate, gating) * up)

    def _product(self, tokens: Array, weight: ReferenceLinear) -> Array:
        """float32[S, K], as `act` holds it → float32[S, N]."""
        result = np.concatenate([self._product_of(tokens, part) for part in weight.parts], axis=1)
        return result if weight.bias is None else result + weight.bias

    def _product_of(self, tokens: Array, weight: Held) -> Array:
        if isinstance(weight, Int8Matrix):
            return int8.product(*int8.quantize(tokens), weight.values, weight.scales)
        if isinstance(weight, HeldInt4):
            return int4.product(*int8.quantize(tokens), weight)
        matrix = self._read(weight)
        result = np.empty((len(tokens), len(matrix)), np.float32)
        for t, token in enumerate(tokens):
            result[t] = matrix @ token
        return result

    def rope_and_write_kv(
        self,
        qkv: ReferenceActivation,
        layer: int,
        rope: RopeTable | None,
        q_norm: Array | None,
        k_norm: Array | None,
        eps: float,
        q_out: ReferenceActivation,
        norms_last: bool = False,
        v_norm: Array | None = None,
    ) -> None:
        cache, metadata = self._kv_cache, self._inputs.metadata
        kept, tokens = cache.shape.of(layer), qkv.rows
        heads = qkv.written.reshape(tokens, -1, kept.key_dim)
        queries = q_out.array.shape[1] // kept.key_dim
        q, k, v = np.split(heads, [queries, queries + kept.kv_heads], axis=1)
        v = v if v.size else k
        if v_norm is not None:
            v = _normalised(v, v_norm, eps)
        if not norms_last:
            q, k = _heads_normalised(q, q_norm, eps), _heads_normalised(k, k_norm, eps)
        if rope is not None and rope.q_scale is not None:
            q = q * rope.q_scale[metadata.positions][:, None, None]
        if rope is not None:
            cos, sin = rope.cos[metadata.positions][:, None], rope.sin[metadata.positions][:, None]
            q, k = _rotated(q, cos, sin), _rotated(k, cos, sin)
        if norms_last:
            q, k = _heads_normalised(q, q_norm, eps), _heads_normalised(k, k_norm, eps)
        q_out.write(self._hold(q).reshape(tokens, -1))
        if not k.size:
            return
        self._write_all(cache.keys, layer, self._hold(k))
        self._write_all(cache.values, layer, self._hold(v))

    def rope_and_write_latent(
        self,
        q: ReferenceActivation,
        kv: ReferenceActivation,
        layer: int,
        rope: RopeTable,
        kv_norm: Array,
        eps: float,
        nope_out: ReferenceActivation,
        q_out: ReferenceActivation,
    ) -> None:
        positions, rank, rotated = self._inputs.metadata.positions, len(kv_norm), 2 * rope.cos.shape[1]
        cos, sin = rope.cos[positions], rope.sin[positions]
        compressed, key = np.split(kv.written, [rank], axis=1)
        kept = np.concatenate([_normalised(compressed, kv_norm, eps), _rotated(key, cos, sin)], axis=1)
        self._write_all(self._kv_cache.keys, layer, self._hold(kept)[:, None])
        heads = q_out.array.shape[1] // (rank + rotated)
        nope, rest = np.split(q.written.reshape(q.rows, heads, -1), [nope_out.array.shape[1] // heads], axis=2)
        nope_out.write(self._hold(nope).reshape(q.rows, -1))
        q_out.rows = q.rows
        q_out.written.reshape(q.rows, heads, -1)[:, :, rank:] = self._hold(_rotated(rest, cos[:, None], sin[:, None]))

    def attention(
        self,
        q: ReferenceActivation,
        layer: int,
        scale: float,
        window: int,
        out: ReferenceActivation,
        soft_cap: float = 0.0,
        sinks: Array | None = None,
    ) -> None:
        cache, metadata = self._kv_cache, self._inputs.metadata
        kept, size, out.rows = cache.shape.of(layer), cache.shape.block_size, q.rows
        queries = self._read(q.written).reshape(q.rows, kept.kv_heads, -1, kept.key_dim)  # [T, G, H / G, D]
        group = queries.shape[2]
        width = out.array.shape[1] // (kept.kv_heads * group)  # of a value
        for chunk, start in enumerate(metadata.context_len):
            first, last = metadata.query_start[chunk], metadata.query_start[chunk + 1]
            if first == last:
                continue
            seen = np.arange(start + last - first)
            table = metadata.block_tables[kept.group, chunk]
            at = (table[seen // size], seen % size)
            keys = self._written(cache.keys[layer], at)  # [G, positions, D]
            values = self._written(cache.values[layer], at) if kept.value_dim else keys[:, :, :width]
            for t in range(first, last):
                position = int(metadata.positions[t])
                span = slice(max(0, position - window + 1) if window else 0, position + 1)
                for head in range(kept.kv_heads):
                    scores = queries[t, head] @ keys[head, span].T * np.float32(scale)  # [H / G, span]
                    scores = _capped(scores, soft_cap) if soft_cap else scores
                    own = sinks[head * group : (head + 1) * group, None] if sinks is not None else scores[:, :0]
                    top = np.concatenate([scores, own], axis=1).max(axis=1, keepdims=True)
                    weights = np.exp(scores - top)
                    rounded = weights if cache.shape.quantized else self._read(self._hold(weights))
                    total = weights.sum(axis=1, keepdims=True) + np.exp(own - top).sum(axis=1, keepdims=True)
                    held = self._hold(rounded @ values[head, span] / total)
                    out.array[t].reshape(kept.kv_heads, -1)[head] = held.reshape(-1)

    def gate(self, gate: ReferenceActivation, x: ReferenceActivation) -> None:
        x.write(self._hold(self._read(x.written) * sigmoid(gate.written)))

    def convolve(self, x: ReferenceActivation, layer: int, weight: Array, out: ReferenceActivation) -> None:
        channels = self._states.inputs[layer].shape[2]
        out.write(_activated(self._convolved(x.written[:, :channels], layer, weight), "silu"))

    def convolve_gated(
        self,
        x: ReferenceActivation,
        layer: int,
        weight: Array,
        bias: Array | None,
        out: ReferenceActivation,
    ) -> None:
        into, outof, inputs = np.split(x.written, 3, axis=1)
        sums = self._convolved(into * inputs, layer, weight)
        out.write(self._hold(outof * (sums if bias is None else sums + bias)))

    def _convolved(self, x: Array, layer: int, weight: Array) -> Array:
        """float32[T, C] → float32[T, C], chunk by chunk."""
        kept, where = self._states.inputs[layer], self._moves
        taps = weight.reshape(-1, x.shape[1])  # [K, C]
        inputs, sums = self._hold(x), np.zeros_like(x)
        for chunk, row, tokens in self._chunks_of_states():
            start = self._inputs.metadata.context_len[chunk]
            before = kept[row] if start else np.zeros_like(kept[row])
            seen = np.concatenate([before, inputs[tokens]])
            for back, tap in enumerate(taps):
                sums[tokens] += tap * self._read(seen[back : back + tokens.stop - tokens.start])
            for entry in range(where.snapshot_start[chunk], where.snapshot_start[chunk + 1]):
                behind = where.positions[entry] - start
                kept[self._states.first_snapshot + where.slots[entry]] = seen[behind : behind + len(before)]
            kept[row] = seen[len(seen) - len(before) :]
        return sums

    def delta_rule(
        self,
        qkv: ReferenceActivation,
        projected: ReferenceActivation,
        gates: ReferenceActivation,
        layer: int,
        key_heads: int,
        decay: Array,
        step_bias: Array,
        norm: Array,
        eps: float,
        out: ReferenceActivation,
    ) -> None:
        matrices, where, tokens = self._states.matrices[layer], self._moves, qkv.rows
        _, heads, key_dim, _ = matrices.shape
        parts = np.split(qkv.written, [key_heads * key_dim, 2 * key_heads * key_dim], axis=1)
        q, k = (_unit(one.reshape(tokens, key_heads, -1)).repeat(heads // key_heads, axis=1) for one in parts[:2])
        q, v = q * np.float32(key_dim**-0.5), parts[2].reshape(tokens, heads, -1)
        b, a = np.split(gates.written, 2, axis=1)
        beta, kept = sigmoid(b), np.exp(decay * _softplus(a + step_bias))
        found = np.empty_like(v)
        for chunk, row, of in self._chunks_of_states():
            start = self._inputs.metadata.context_len[chunk]
            state = matrices[row] if start else np.zeros_like(matrices[row])
            due = range(where.snapshot_start[chunk], where.snapshot_start[chunk + 1])
            slots = {int(where.positions[entry]): self._states.first_snapshot + where.slots[entry] for entry in due}
            for t in range(of.start, of.stop):
                state = state * kept[t, :, None, None]
                delta = (v[t] - (state * k[t, :, :, None]).sum(axis=1)) * beta[t, :, None]
                state = state + k[t, :, :, None] * delta[:, None]
                found[t] = (state * q[t, :, :, None]).sum(axis=1)
                if (slot := slots.get(int(start + t - of.start + 1))) is not None:
                    matrices[slot] = state
            matrices[row] = state
        z = projected.written[:, qkv.written.shape[1] :].reshape(found.shape)
        out.write(self._hold(_normalised(found, norm, eps) * _activated(z, "silu")).reshape(tokens, -1))

    @property
    def _states(self) -> ReferenceStates:
        assert isinstance(self._slots.states, ReferenceStates)
        return self._slots.states

    @property
    def _moves(self) -> StateMetadata:
        assert self._inputs.states is not None
        return self._inputs.states

    def _chunks_of_states(self) -> Iterator[tuple[int, int, slice]]:
        """Of each chunk that has tokens: its number, the row of its state, and its tokens."""
        starts = self._inputs.metadata.query_start.tolist()
        for chunk, row in enumerate(self._moves.rows.tolist()):
            if starts[chunk] < starts[chunk + 1]:
                yield chunk, row, slice(starts[chunk], starts[chunk + 1])

    def gather(self, x: ReferenceActivation, places: Sequence[int], out: ReferenceActivation) -> None:
        out.write(x.written[list(places)])

    def _write_all(self, held: dict[int, ReferenceHeld], layer: int, x: Array) -> None:
        """act[T, G, D], keys or values of the pass's tokens → their blocks."""
        metadata, shape = self._inputs.metadata, self._kv_cache.shape
        for chunk, table in enumerate(metadata.block_tables[shape.of(layer).group]):
            rows = slice(metadata.query_start[chunk], metadata.query_start[chunk + 1])
            positions = metadata.positions[rows]
            at = (table[positions // shape.block_size], positions % shape.block_size)
            self._write(held[layer], at, x[rows])

    def _write(self, held: ReferenceHeld, at: tuple[Array, Array], x: Array) -> None:
        """act[N, G, D] → slots of blocks of a layer."""
        if held.scales is None:
            held.values[at] = x
        else:
            whole, scales = int8.quantize(self._read(x).reshape(-1, x.shape[-1]))
            held.values[at], held.scales[at] = whole.reshape(x.shape), scales.reshape(x.shape[:-1])

    def _written(self, held: ReferenceHeld, at: tuple[Array, Array]) -> Array:
        """float32[G, N, D] of what `_write` wrote."""
        x = held.values[at]
        meant = self._read(x) if held.scales is None else x.astype(np.float32) * held.scales[at][..., None]
        return meant.transpose(1, 0, 2)


def hold(dtype: DType, values: Array) -> Array:
    """float32 → `act`."""
    return to_bf16(values) if dtype == "bfloat16" else np.asarray(values, np.float32)


def _normalised(x: Array, weight: Array, eps: float) -> Array:
    mean = np.mean(np.square(x, dtype=np.float32), axis=-1, keepdims=True, dtype=np.float32)
    return (x / np.sqrt(mean + np.float32(eps)) * weight).astype(np.float32)


def _heads_normalised(x: Array, weight: Array | None, eps: float) -> Array:
    """x [T, heads, D]: each head, or all at once, by the length of the weight; as they are without one."""
    return x if weight is None else _normalised(x.reshape(len(x), -1, len(weight)), weight, eps).reshape(x.shape)


def _copied(matrix: Int4Matrix) -> Int4Matrix:
    return replace(matrix, codes=matrix.codes.copy())


def _unit(x: Array) -> Array:
    unit: Array = x / np.sqrt(np.sum(np.square(x), axis=-1, keepdims=True) + np.float32(1e-6))
    return unit


def _softplus(x: Array) -> Array:
    """log(1 + eˣ), without its overflow."""
    found: Array = np.where(x > 20, x, np.log1p(np.exp(np.minimum(x, np.float32(20)))))
    return found


def _rotated(x: Array, cos: Array, sin: Array) -> Array:
    half = cos.shape[-1]
    low, high, rest = x[..., :half], x[..., half : 2 * half], x[..., 2 * half :]
    return np.concatenate([low * cos - high * sin, high * cos + low * sin, rest], axis=-1)


def _capped(x: Array, cap: float) -> Array:
    capped: Array = np.float32(cap) * np.tanh(x / np.float32(cap))
    return capped


def _activated(x: Array, activation: Nonlinearity, parameters: Array | None = None) -> Array:
    if activation == "relu2":
        return np.square(np.maximum(x, np.float32(0)))
    if activation == "xielu":
        assert parameters is not None
        above, below = parameters
        bent = np.where(x > 0, above * x * x, below * (np.expm1(np.minimum(x, np.float32(-1e-6))) - x))
        return np.asarray(bent + np.float32(0.5) * x, np.float32)
    inner = x if activation == "silu" else np.float32(2 * math.sqrt(2 / math.pi)) * (x + np.float32(0.044715) * x**3)
    with np.errstate(over="ignore"):
        activated: Array = x / (np.float32(1) + np.exp(-inner))
    return activated
