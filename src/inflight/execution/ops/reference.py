"""The op set in numpy: slow, readable, and the definition of what is right.

Knows the same contract as the kernels (`protocol.py`) and rounds to bf16 at the points that it names: activations,
keys, values and weights are held in bf16, everything between is float32. Two more points where the fast kernels round,
so that both stay comparable: attention's probabilities are rounded to `act` before they meet the values (their sum is
not), and nothing else. Over int8 keys and values, where the kernels round to 16 bits, it rounds neither queries nor
probabilities.

Batch invariance is had by brute force: every token, query and sampled row is computed alone, in a call whose shapes
depend on itself only.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from inflight.execution.ops import int8
from inflight.execution.ops.bf16 import from_bf16, to_bf16
from inflight.execution.ops.protocol import (
    DType,
    KVShape,
    RopeTable,
    SampledBatch,
    SamplingBatch,
    ScoredBatch,
    StepLayout,
)

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True)
class ReferenceLinear:
    """A weight matrix [N, K], as stored (uint16, float32, or int8 with scales float32[N]), and its bias."""

    weight: Array
    bias: Array | None
    scales: Array | None = None

    @property
    def rows(self) -> int:
        return int(self.weight.shape[0])

    @property
    def columns(self) -> int:
        return int(self.weight.shape[1])

    @property
    def nbytes(self) -> int:
        return sum(array.nbytes for array in (self.weight, self.bias, self.scales) if array is not None)


@dataclass(frozen=True, slots=True)
class ReferenceGated:
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
class ReferenceTable:
    """An embedding table [V, E]; tied, the same array is the output projection."""

    weight: Array
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
    """Keys or values of an arena: `act`, or int8 with scales."""

    values: Array
    scales: Array | None

    @classmethod
    def zeros(cls, sizes: tuple[int, ...], dtype: DType, quantized: bool) -> ReferenceHeld:
        if quantized:
            return cls(np.zeros(sizes, np.int8), np.zeros(sizes[:-1], np.float32))
        return cls(np.zeros(sizes, np.uint16 if dtype == "bfloat16" else np.float32), None)

    @property
    def nbytes(self) -> int:
        return int(self.values.nbytes) + (0 if self.scales is None else int(self.scales.nbytes))

    def copy_block(self, source: int, destination: int) -> None:
        self.values[:, destination] = self.values[:, source]
        if self.scales is not None:
            self.scales[:, destination] = self.scales[:, source]


@dataclass(slots=True)
class ReferenceArena:
    """Keys and values, [layers, blocks, B, G, D] each; quantized, with scales [layers, blocks, B, G]."""

    shape: KVShape
    num_blocks: int
    dtype: DType
    keys: ReferenceHeld = field(init=False)
    values: ReferenceHeld = field(init=False)

    def __post_init__(self) -> None:
        s = self.shape
        sizes = (s.layers, self.num_blocks, s.block_size, s.kv_heads, s.head_dim)
        self.keys = ReferenceHeld.zeros(sizes, self.dtype, s.quantized)
        self.values = ReferenceHeld.zeros(sizes, self.dtype, s.quantized)

    @property
    def nbytes(self) -> int:
        return self.keys.nbytes + self.values.nbytes

    def copy_blocks(self, sources: Sequence[int], destinations: Sequence[int]) -> None:
        for source, destination in zip(sources, destinations, strict=True):
            self.keys.copy_block(source, destination)
            self.values.copy_block(source, destination)


class ReferenceOps:
    """OpSet over numpy. `threads` is accepted and ignored."""

    def __init__(self, dtype: DType, threads: int = 1) -> None:
        if dtype not in ("bfloat16", "float32"):
            raise ValueError(f"dtype must be bfloat16 or float32, not {dtype!r}")
        self.name = "reference"
        self.dtype: DType = dtype
        self.threads = threads

    # -- number formats ---------------------------------------------------------------------------------------------
    def _hold(self, values: Array) -> Array:
        """float32 → `act`."""
        return to_bf16(values) if self.dtype == "bfloat16" else np.asarray(values, np.float32)

    def _read(self, held: Array) -> Array:
        """`act` → float32."""
        return from_bf16(held) if self.dtype == "bfloat16" else np.asarray(held, np.float32)

    def _convert(self, source: Array) -> Array:
        """A checkpoint's array → `dtype`, copied."""
        if source.dtype == np.uint16 and self.dtype == "bfloat16":
            return source.copy()
        return self._hold(_float32(source))

    # -- once, at load ----------------------------------------------------------------------------------------------
    def pack_linear(
        self, parts: Sequence[Array], bias: Array | None = None, quantized: bool = False
    ) -> ReferenceLinear:
        held_bias = None if bias is None else np.array(bias, np.float32)
        if quantized:
            weight, scales = int8.quantize(np.concatenate([_float32(part) for part in parts]))
            return ReferenceLinear(weight, held_bias, scales)
        return ReferenceLinear(np.concatenate([self._convert(part) for part in parts]), held_bias)

    def pack_gated(self, gate: Array, up: Array, quantized: bool = False) -> ReferenceGated:
        return ReferenceGated(
            self.pack_linear([gate], quantized=quantized), self.pack_linear([up], quantized=quantized)
        )

    def pack_table(self, table: Array, tied: bool, quantized: bool = False) -> ReferenceTable:
        if not tied:
            if quantized:
                raise ValueError("only a tied table, which is a product too, can be quantized")
            return ReferenceTable(self._convert(table), None)
        linear = self.pack_linear([table], quantized=quantized)
        return ReferenceTable(linear.weight, linear)

    def bytes_per_block(self, shape: KVShape) -> int:
        item = 2 if self.dtype == "bfloat16" else 4
        head = shape.head_dim + 4 if shape.quantized else shape.head_dim * item
        return 2 * shape.layers * shape.block_size * shape.kv_heads * head

    def kv_arena(self, shape: KVShape, num_blocks: int) -> ReferenceArena:
        return ReferenceArena(shape, num_blocks, self.dtype)

    # -- per step ---------------------------------------------------------------------------------------------------
    def embed(self, table: ReferenceTable, token_ids: Array, out: Array) -> None:
        rows = table.weight[token_ids]
        if table.linear is not None and table.linear.scales is not None:
            out[:] = rows.astype(np.float32) * table.linear.scales[token_ids, None]
        else:
            out[:] = self._read(rows)

    def rms_norm(self, x: Array, weight: Array, eps: float, out: Array) -> None:
        out[:] = self._hold(_normalised(x, weight, eps))

    def linear(self, x: Array, weight: ReferenceLinear, out: Array) -> None:
        out[:] = self._product(x, weight)

    def linear_add(self, x: Array, weight: ReferenceLinear, out: Array) -> None:
        out += self._product(x, weight)

    def gated(self, x: Array, weight: ReferenceGated, out: Array) -> None:
        gate, up = self._product(x, weight.gate), self._product(x, weight.up)
        with np.errstate(over="ignore"):
            out[:] = self._hold(gate / (np.float32(1) + np.exp(-gate)) * up)

    def _product(self, x: Array, weight: ReferenceLinear) -> Array:
        tokens = self._read(x)
        if weight.scales is not None:
            result = int8.product(*int8.quantize(tokens), weight.weight, weight.scales)
        else:
            matrix = self._read(weight.weight)
            result = np.empty((len(tokens), weight.rows), np.float32)
            for t, token in enumerate(tokens):
                result[t] = matrix @ token
        return result if weight.bias is None else result + weight.bias

    def rope_and_write_kv(
        self,
        qkv: Array,
        arena: ReferenceArena,
        layer: int,
        layout: StepLayout,
        rope: RopeTable,
        q_norm: Array | None,
        k_norm: Array | None,
        eps: float,
        q_out: Array,
    ) -> None:
        shape = arena.shape
        tokens, width = len(qkv), shape.head_dim
        heads = qkv.reshape(tokens, -1, width)
        q, k, v = np.split(heads, [heads.shape[1] - 2 * shape.kv_heads, heads.shape[1] - shape.kv_heads], axis=1)
        if q_norm is not None:
            q = _normalised(q, q_norm, eps)
        if k_norm is not None:
            k = _normalised(k, k_norm, eps)
        cos, sin = rope.cos[layout.positions][:, None], rope.sin[layout.positions][:, None]
        q_out[:] = self._hold(_rotated(q, cos, sin)).reshape(tokens, -1)
        k, v = self._hold(_rotated(k, cos, sin)), self._hold(v)
        for chunk in range(len(layout.starts)):
            rows = slice(layout.offsets[chunk], layout.offsets[chunk + 1])
            positions = layout.positions[rows]
            at = (layer, layout.tables[chunk, positions // shape.block_size], positions % shape.block_size)
            self._write(arena.keys, at, k[rows])
            self._write(arena.values, at, v[rows])

    def attention(
        self, q: Array, arena: ReferenceArena, layer: int, layout: StepLayout, scale: float, window: int, out: Array
    ) -> None:
        shape = arena.shape
        queries = self._read(q).reshape(len(q), shape.kv_heads, -1, shape.head_dim)  # [T, G, H / G, D]
        for chunk, start in enumerate(layout.starts):
            first, last = layout.offsets[chunk], layout.offsets[chunk + 1]
            if first == last:
                continue
            seen = np.arange(start + last - first)
            at = (layer, layout.tables[chunk, seen // shape.block_size], seen % shape.block_size)
            keys, values = self._written(arena.keys, at), self._written(arena.values, at)  # [G, positions, D]
            for t in range(first, last):
                position = int(layout.positions[t])
                span = slice(max(0, position - window + 1) if window else 0, position + 1)
                for group in range(shape.kv_heads):
                    scores = queries[t, group] @ keys[group, span].T * np.float32(scale)  # [H / G, span]
                    weights = np.exp(scores - scores.max(axis=1, keepdims=True))
                    rounded = weights if shape.quantized else self._read(self._hold(weights))
                    mixed = rounded @ values[group, span]
                    held = self._hold(mixed / weights.sum(axis=1, keepdims=True))
                    out[t].reshape(shape.kv_heads, -1)[group] = held.reshape(-1)

    def _write(self, held: ReferenceHeld, at: tuple[int, Array, Array], x: Array) -> None:
        """act[N, G, D] → slots of blocks of a layer."""
        if held.scales is None:
            held.values[at] = x
        else:
            whole, scales = int8.quantize(self._read(x).reshape(-1, x.shape[-1]))
            held.values[at], held.scales[at] = whole.reshape(x.shape), scales.reshape(x.shape[:-1])

    def _written(self, held: ReferenceHeld, at: tuple[int, Array, Array]) -> Array:
        """float32[G, N, D] of what `_write` wrote."""
        x = held.values[at]
        meant = self._read(x) if held.scales is None else x.astype(np.float32) * held.scales[at][..., None]
        return meant.transpose(1, 0, 2)

    def sample(self, logits: Array, batch: SamplingBatch) -> SampledBatch:
        rows = len(logits)
        wanted = np.where(batch.want_logprobs, batch.top_logprobs, 0)
        widest = min(int(wanted.max(initial=0)), logits.shape[1])
        yielded = SampledBatch(
            np.zeros(rows, np.int32),
            np.zeros(rows, np.float32),
            np.zeros((rows, widest), np.int32),
            np.zeros((rows, widest), np.float32),
        )
        for row in range(rows):
            untouched = _without_nan(logits[row])
            penalised = _penalised(untouched.copy(), batch, row)
            drawn = yielded.token_ids[row] = _draw(penalised.copy(), batch, row)
            if penalised[drawn] == -np.inf:  # there was nothing to draw
                logits[row, drawn] = -np.inf
            if batch.want_logprobs[row]:
                _report(untouched, yielded.token_ids[row], int(wanted[row]), yielded, row)
        return yielded

    def score(self, logits: Array, token_ids: Array, top_logprobs: Array) -> ScoredBatch:
        rows = len(logits)
        widest = min(int(top_logprobs.max(initial=0)), logits.shape[1])
        yielded = ScoredBatch(
            np.zeros(rows, np.float32), np.zeros((rows, widest), np.int32), np.zeros((rows, widest), np.float32)
        )
        for row in range(rows):
            _report(_without_nan(logits[row]), token_ids[row], int(top_logprobs[row]), yielded, row)
        return yielded


def _float32(source: Array) -> Array:
    """A checkpoint's array (uint16 = bf16, float16, float32) → float32."""
    if source.dtype == np.uint16:
        return from_bf16(source)
    if source.dtype not in (np.float16, np.float32):
        raise ValueError(f"weights must be float32, float16 or uint16 (bf16), not {source.dtype}")
    return source.astype(np.float32)


def _without_nan(logits: Array) -> Array:
    return np.where(np.isnan(logits), np.float32(-np.inf), logits)


def _report(logits: Array, token_id: int, wanted: int, out: SampledBatch | ScoredBatch, row: int) -> None:
    """Log-probabilities of a token and of the likeliest, in double precision, → row of `out`."""
    peak = float(logits.max())
    with np.errstate(invalid="ignore"):
        logprobs = logits.astype(np.float64) - (peak + np.log(np.exp(logits.astype(np.float64) - peak).sum()))
    out.logprobs[row] = logprobs[token_id]
    best = np.argsort(-logits, kind="stable")[:wanted]
    out.top_ids[row, : len(best)] = best
    out.top_logprobs[row, : len(best)] = logprobs[best]


def _normalised(x: Array, weight: Array, eps: float) -> Array:
    mean = np.mean(np.square(x, dtype=np.float32), axis=-1, keepdims=True, dtype=np.float32)
    return (x / np.sqrt(mean + np.float32(eps)) * weight).astype(np.float32)


def _rotated(x: Array, cos: Array, sin: Array) -> Array:
    half = x.shape[-1] // 2
    low, high = x[..., :half], x[..., half:]
    return np.concatenate([low * cos - high * sin, high * cos + low * sin], axis=-1)


def _penalised(logits: Array, batch: SamplingBatch, row: int) -> Array:
    """Bias, then repetition, frequency and presence penalties, each in float32."""
    span = slice(batch.bias_offsets[row], batch.bias_offsets[row + 1])
    np.add.at(logits, batch.bias_ids[span], batch.bias_values[span])
    history = batch.histories[row]
    if history is not None:
        repetition = np.float32(batch.repetition_penalty[row])
        if repetition != 1:
            seen = np.unique(history)
            values = logits[seen]
            logits[seen] = np.where(values > 0, values / repetition, values * repetition)
        output, counts = np.unique(history[batch.prompt_lengths[row] :], return_counts=True)
        logits[output] -= np.float32(batch.frequency_penalty[row]) * counts.astype(np.float32)
        logits[output] -= np.float32(batch.presence_penalty[row])
    return logits


def _draw(logits: Array, batch: SamplingBatch, row: int) -> int:
    """One token by the settings of a row. A largest logit that is not finite leaves nothing to draw: it is taken."""
    greedy = int(np.argmax(logits))
    temperature = np.float32(batch.temperature[row])
    if not temperature > 0:
        return greedy
    with np.errstate(over="ignore"):
        scaled = logits / temperature
    if not np.isfinite(scaled[greedy]):
        return greedy
    distance = scaled.astype(np.float64) - np.float64(scaled[greedy])
    top_k, top_p, min_p = int(batch.top_k[row]), float(batch.top_p[row]), float(batch.min_p[row])
    if top_k <= 0 and top_p >= 1 and min_p <= 0:
        kept = np.arange(len(logits))
    else:
        kept = np.argsort(-distance, kind="stable")
        if min_p > 0:
            kept = kept[distance[kept] >= np.log(min_p)]  # p ≥ min_p · largest p
        if top_k > 0:
            kept = kept[:top_k]
        if top_p < 1:
            cumulative = np.cumsum(np.exp(distance[kept]))
            before = np.concatenate([[0.0], cumulative[:-1]])
            kept = kept[: max(1, int((before < top_p * cumulative[-1]).sum()))]
    cumulative = np.cumsum(np.exp(distance[kept]))
    u = uniform(int(batch.seed[row]), int(batch.draw_index[row]), int(batch.sample_index[row]))
    return int(kept[min(int(np.searchsorted(cumulative, u * cumulative[-1], side="right")), len(kept) - 1)])


def uniform(seed: int, draw_index: int, sample_index: int) -> float:
    """The documented draw in [0, 1): words 0 (low) and 1 (high) form 64 bits, the upper 53 are the fraction."""
    words = philox4x32_10((draw_index, sample_index, 0, 0), (seed & 0xFFFFFFFF, seed >> 32))
    return ((words[1] << 32 | words[0]) >> 11) * 2.0**-53


def philox4x32_10(counter: tuple[int, int, int, int], key: tuple[int, int]) -> tuple[int, int, int, int]:
    """Philox 4×32 with ten rounds (Salmon et al., 2011): a bijection of the counter under a key."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(10):
        p0, p1 = 0xD2511F53 * c0, 0xCD9E8D57 * c2
        c0, c1, c2, c3 = (p1 >> 32) ^ c1 ^ k0, p1 & 0xFFFFFFFF, (p0 >> 32) ^ c3 ^ k1, p0 & 0xFFFFFFFF
        k0, k1 = (k0 + 0x9E3779B9) & 0xFFFFFFFF, (k1 + 0xBB67AE85) & 0xFFFFFFFF
    return c0, c1, c2, c3
