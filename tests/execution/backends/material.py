"""Random arrays, metadata and settings for the tests of the backends, and their operations on plain arrays."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

import inflight.execution.ops  # noqa: F401  # which registers them
from inflight.core.types.plan import Capacity
from inflight.execution.backends.bf16 import from_bf16, to_bf16
from inflight.execution.backends.protocol import AttentionMetadata, KVShape, RopeTable, SamplingBatch
from inflight.execution.batch.input_batch import InputBatch
from inflight.execution.batch.pass_layout import PassInputs
from inflight.execution.program import OPERATIONS, Operation, Program

Array = np.ndarray[Any, Any]


def normal(seed: int, *shape: int) -> Array:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def held(dtype: str, values: Array) -> Array:
    """float32 → `act`."""
    return to_bf16(values) if dtype == "bfloat16" else values.astype(np.float32)


def read(dtype: str, values: Array) -> Array:
    """`act` → float32."""
    return from_bf16(values) if dtype == "bfloat16" else values


def act(dtype: str, *shape: int) -> Array:
    """An `act` array of garbage, NaN in both formats, that an operation has to write whole."""
    return np.full(shape, 0xFFFF, np.uint16) if dtype == "bfloat16" else np.full(shape, np.nan, np.float32)


def rope_table(positions: int, dim: int) -> RopeTable:
    angles = np.arange(positions)[:, None] * 10000.0 ** (-np.arange(dim // 2) * 2 / dim)
    return RopeTable(np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32))


@dataclass
class Blocks:
    """Hand out blocks in shuffled order, so that a sequence's blocks are no neighbours."""

    free: list[int]

    @classmethod
    def shuffled(cls, count: int, seed: int) -> Blocks:
        return cls([int(b) for b in np.random.default_rng(seed).permutation(count)])

    def take(self, positions: int, block_size: int) -> list[int]:
        return [self.free.pop() for _ in range(-(-positions // block_size))]


def metadata_of(chunks: list[tuple[int, int, list[int]]]) -> AttentionMetadata:
    """Chunks as (start, length, blocks)."""
    width = max((len(blocks) for _, _, blocks in chunks), default=1)
    tables = np.full((len(chunks), width), -1, np.int32)
    for row, (_, _, blocks) in enumerate(chunks):
        tables[row, : len(blocks)] = blocks
    return AttentionMetadata(
        positions=np.concatenate([np.zeros(0), *(np.arange(s, s + n) for s, n, _ in chunks)]).astype(np.int32),
        query_start=np.cumsum([0] + [n for _, n, _ in chunks]).astype(np.int32),
        context_len=np.array([s for s, _, _ in chunks], np.int32),
        block_tables=tables[None],
    )


@dataclass
class Case:
    """Sequences whose keys and values stand in a KV cache of equal layers, and the queries of their last tokens."""

    ops: Any
    shape: KVShape
    heads: int
    lengths: list[int]
    cache: Any
    blocks: list[list[int]]
    qkv: list[Array] = field(default_factory=list)

    @classmethod
    def build(cls, ops: Any, shape: KVShape, heads: int, lengths: list[int], seed: int = 0) -> Case:
        """Sequence i is the same for the same (seed, i), whatever the others are."""
        needed = sum(-(-n // shape.block_size) for n in lengths) + 3
        pool = Blocks.shuffled(needed, seed + 1)
        case = cls(ops, shape, heads, lengths, ops.kv_cache(shape, needed), [])
        kept = shape.of(0)
        width = (heads + 2 * kept.kv_heads) * kept.key_dim
        for i, length in enumerate(lengths):
            case.blocks.append(pool.take(length, shape.block_size))
            case.qkv.append(normal(1000 * seed + i, length, width))
        return case

    def prepared(self, chunks: list[tuple[int, int, int]]) -> tuple[Any, Any]:
        """A pass over chunks whose keys and values are there, and their rotated queries, which all layers share."""
        metadata = metadata_of([(start, n, self.blocks[i]) for i, start, n in chunks])
        qkv = np.concatenate([self.qkv[i][start : start + n] for i, start, n in chunks])
        batch = self.ops.over(metadata, self.cache)
        queries = self.ops.activation(len(qkv), self.heads * self.shape.of(0).key_dim, "act")
        rope = self.ops.pack_rope(rope_table(max(self.lengths), self.shape.of(0).key_dim))
        batch.rope_and_write_kv(self.ops.activation_of(qkv), 0, rope, None, None, 1e-6, queries)
        return batch, queries

    def run(
        self,
        chunks: list[tuple[int, int, int]],
        layer: int = 0,
        window: int = 0,
        norms: bool = False,
        soft_cap: float = 0.0,
        sinks: bool = False,
        causal: bool = True,
        distances: bool = False,
    ) -> list[Array]:
        """One step over chunks (sequence, start, length): writes keys and values, attends; per chunk what came out.
        distances: a number for each is added to scores."""
        own = 3 * normal(8, self.heads) if sinks else None
        bias = position_bias(self.heads, max(self.lengths)) if distances else None
        dim = self.shape.of(0).key_dim
        metadata = metadata_of([(start, n, self.blocks[i]) for i, start, n in chunks])
        qkv = np.concatenate([self.qkv[i][start : start + n] for i, start, n in chunks])
        q, out = act(self.ops.dtype, len(qkv), self.heads * dim), act(self.ops.dtype, len(qkv), self.heads * dim)
        q_norm, k_norm = (1 + 0.1 * normal(5, dim), 1 + 0.1 * normal(6, dim)) if norms else (None, None)
        rope = rope_table(max(self.lengths), dim)
        self.ops.rope_and_write_kv(qkv, self.cache, layer, metadata, rope, q_norm, k_norm, 1e-6, q)
        self.ops.attention(q, self.cache, layer, metadata, dim**-0.5, window, out, soft_cap, own, causal, bias)
        return np.split(out, metadata.query_start[1:-1])


class OneByOne:
    """A pass of a backend, with a method for each operation: it is run by itself, as a program of one call."""

    def __init__(self, backend: Any, batch: Any) -> None:
        self._backend, self._batch = backend, batch

    def __getattr__(self, name: str) -> Any:
        return partial(self._run, OPERATIONS[name]) if name in OPERATIONS else getattr(self._batch, name)

    def gather(self, x: Any, places: Sequence[int], out: Any) -> None:
        self._run(OPERATIONS["gather"], x, out, places=places)

    def mean(self, x: Any, texts: Sequence[range], out: Any) -> None:
        self._run(OPERATIONS["mean"], x, out, texts=texts)

    def _run(
        self,
        operation: Operation[...],
        *arguments: Any,
        places: Sequence[int] = (),
        texts: Sequence[range] = (),
        **named: Any,
    ) -> None:
        program = Program()
        operation(program, *arguments, **named)
        self._batch.run(self._backend.compile(program), places, texts)


class OnArrays:
    """A backend whose operations take arrays: each gets activations around them, in a pass of its own."""

    def __init__(self, backend: Any) -> None:
        self.backend = backend
        self._empty = self._inputs(np.zeros(0, np.int32), metadata_of([]))
        self._slots = InputBatch(Capacity(1, 16, 1, 16, 1), 0)
        self._cache = backend.kv_cache(KVShape.uniform(1, 16, 1, 32), 1)

    def __getattr__(self, name: str) -> Any:
        """Take arrays as they are."""
        return getattr(self.backend, name)

    @staticmethod
    def _inputs(token_ids: Array, metadata: AttentionMetadata) -> PassInputs:
        none = np.zeros(0, np.int32)
        return PassInputs(none, none, token_ids, metadata)

    def _pass(self, inputs: PassInputs | None = None, cache: Any = None) -> Any:
        batch = self.backend.forward_pass(inputs or self._empty, cache or self._cache, self._slots, ())
        return OneByOne(self.backend, batch)

    def over(self, metadata: AttentionMetadata, cache: Any) -> Any:
        """A pass over these positions, whatever their tokens are."""
        return self._pass(self._inputs(np.zeros(len(metadata.positions), np.int32), metadata), cache)

    def embed(self, table: Any, token_ids: Array, out: Array) -> None:
        inputs = self._inputs(token_ids, metadata_of([(0, len(token_ids), [0])]))
        self._pass(inputs).embed(table, self.activation_of(out))

    def rms_norm(self, x: Array, weight: Array, eps: float, out: Array) -> None:
        self._pass().rms_norm(self.activation_of(x), self.pack_vector(weight), eps, self.activation_of(out))

    def linear(self, x: Array, weight: Any, out: Array) -> None:
        self._pass().linear(self.activation_of(x), weight, self.activation_of(out))

    def linear_residual(self, x: Array, weight: Any, out: Array) -> None:
        self._pass().linear_residual(self.activation_of(x), weight, self.activation_of(out))

    def gate_up(self, x: Array, weight: Any, out: Array, activation: str = "silu") -> None:
        self._pass().gate_up(self.activation_of(x), weight, self.activation_of(out), activation)

    def layer_norm(self, x: Array, weight: Array, bias: Array | None, eps: float, out: Array) -> None:
        packed = None if bias is None else self.pack_vector(bias)
        self._pass().layer_norm(self.activation_of(x), self.pack_vector(weight), packed, eps, self.activation_of(out))

    def layer_norm_sum(self, x: Array, weight: Array, bias: Array | None, eps: float, out: Array) -> None:
        packed = None if bias is None else self.pack_vector(bias)
        on = self.activation_of
        self._pass().layer_norm_sum(on(x), self.pack_vector(weight), packed, eps, on(out))

    def mean(self, x: Array, ranges: Sequence[range], out: Array) -> None:
        self._pass().mean(self.activation_of(x), ranges, self.activation_of(out))

    def linear_act(self, x: Array, weight: Any, activation: str, out: Array) -> None:
        self._pass().linear_act(self.activation_of(x), weight, activation, self.activation_of(out))

    def to_act(self, x: Array, out: Array) -> None:
        self._pass().to_act(self.activation_of(x), self.activation_of(out))

    def activate(
        self,
        x: Array,
        activation: str,
        out: Array,
        parameters: Array | None = None,
        by: Array | None = None,
        first: int = 0,
    ) -> None:
        packed = None if parameters is None else self.pack_vector(parameters)
        factors = None if by is None else self.activation_of(by)
        self._pass().activate(self.activation_of(x), activation, self.activation_of(out), packed, factors, first)

    def add(self, x: Array, norm: Array | None, eps: float, factor: float, out: Array) -> None:
        packed = None if norm is None else self.pack_vector(norm)
        self._pass().add(self.activation_of(x), packed, eps, factor, self.activation_of(out))

    def scale(self, x: Array, factor: float) -> None:
        self._pass().scale(self.activation_of(x), factor)

    def soft_cap(self, x: Array, cap: float) -> None:
        self._pass().soft_cap(self.activation_of(x), cap)

    def experts(self, x: Array, logits: Array, weight: Any, out: Array) -> None:
        on = self.activation_of
        self._pass().experts(on(x), on(logits), weight, on(out))

    def add_gated(self, x: Array, gate: Array, out: Array) -> None:
        on = self.activation_of
        self._pass().add_gated(on(x), on(gate), on(out))

    def rope_and_write_kv(
        self,
        qkv: Array,
        cache: Any,
        layer: int,
        metadata: AttentionMetadata,
        rope: RopeTable | None,
        q_norm: Array | None,
        k_norm: Array | None,
        eps: float,
        q_out: Array,
        norms_last: bool = False,
        v_norm: Array | None = None,
    ) -> None:
        *norms, of_values = [None if norm is None else self.pack_vector(norm) for norm in (q_norm, k_norm, v_norm)]
        self.over(metadata, cache).rope_and_write_kv(
            self.activation_of(qkv),
            layer,
            rope and self.pack_rope(rope),
            *norms,
            eps,
            self.activation_of(q_out),
            norms_last,
            of_values,
        )

    def attention(
        self,
        q: Array,
        cache: Any,
        layer: int,
        metadata: AttentionMetadata,
        scale: float,
        window: int,
        out: Array,
        soft_cap: float = 0.0,
        sinks: Array | None = None,
        causal: bool = True,
        position_bias: Array | None = None,
    ) -> None:
        self.over(metadata, cache).attention(
            self.activation_of(q),
            layer,
            scale,
            window,
            self.activation_of(out),
            soft_cap,
            None if sinks is None else self.pack_vector(sinks),
            causal,
            None if position_bias is None else self.pack_vector(position_bias),
        )


HEAD_SHAPES = (  # dim, heads, kv_heads, block size, window
    *((64, 14, 2, 16, 0), (128, 4, 4, 32, 0), (80, 6, 2, 48, 0), (32, 3, 1, 16, 20)),
    *((64, 4, 2, 64, 100), (10, 2, 1, 16, 7), (24, 100, 1, 16, 0), (72, 2, 2, 32, 0)),
)


def same_rows_and_logits(ops: Any, reference: Any, dtype: str, table: Any, hold: str) -> tuple[Array, Array]:
    """Look rows of a tied table of 150 x 47 up, and multiply by it; assert that both have the same bits. Return the ids
    and their rows."""
    ids, x, found = np.array([0, 149, 63, 64, 65, 7, 7], np.int32), held(dtype, normal(2, 3, 47)), []
    for one in (ops, reference):
        packed = one.pack_table(table, hold=hold)
        rows, logits = np.full((7, 47), np.nan, np.float32), np.empty((3, 150), np.float32)
        one.embed(packed, ids, rows)
        one.linear(x, packed.linear, logits)
        found.append((rows, logits))
    np.testing.assert_array_equal(found[0][0], found[1][0])
    np.testing.assert_array_equal(found[0][1], found[1][1])
    return ids, found[0][0]


def position_bias(heads: int, length: int) -> Array:
    """Make a bias for distances below `length`, as attention takes it: all numbers differ, and unused ones are NaN."""
    every = np.full((heads, 2 * length + 63), np.nan, np.float32)
    every[:, : 2 * length - 1] = 2 * normal(9, heads, 2 * length - 1)
    return every.ravel()


def sampling(rows: int, **settings: Any) -> SamplingBatch:
    """Greedy rows without any setting, but for those given (broadcast over the rows)."""

    def column(name: str, kind: Any, usual: float) -> Array:
        return np.ascontiguousarray(np.broadcast_to(np.asarray(settings.pop(name, usual), kind), (rows,)))

    batch = SamplingBatch(
        temperature=column("temperature", np.float32, 0),
        top_k=column("top_k", np.int32, 0),
        top_p=column("top_p", np.float32, 1),
        min_p=column("min_p", np.float32, 0),
        repetition_penalty=column("repetition_penalty", np.float32, 1),
        presence_penalty=column("presence_penalty", np.float32, 0),
        frequency_penalty=column("frequency_penalty", np.float32, 0),
        seed=column("seed", np.uint64, 0),
        sample_index=column("sample_index", np.uint32, 0),
        draw_index=column("draw_index", np.uint32, 0),
        histories=settings.pop("histories", [None] * rows),
        prompt_lengths=column("prompt_lengths", np.int32, 0),
        bias_offsets=settings.pop("bias_offsets", np.zeros(rows + 1, np.int32)),
        bias_ids=settings.pop("bias_ids", np.zeros(0, np.int32)),
        bias_values=settings.pop("bias_values", np.zeros(0, np.float32)),
        allowed=settings.pop("allowed", [None] * rows),
        want_logprobs=column("want_logprobs", np.bool_, False),
        top_logprobs=column("top_logprobs", np.int32, 0),
    )
    assert not settings, settings
    return batch
