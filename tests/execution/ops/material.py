"""Random arrays, layouts and settings for the tests of the op sets."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from inflight.execution.ops.bf16 import from_bf16, to_bf16
from inflight.execution.ops.protocol import KVShape, RopeTable, SamplingBatch, StepLayout

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
    """Hands out blocks in shuffled order, so that a sequence's blocks lie apart."""

    free: list[int]

    @classmethod
    def shuffled(cls, count: int, seed: int) -> Blocks:
        return cls([int(b) for b in np.random.default_rng(seed).permutation(count)])

    def take(self, positions: int, block_size: int) -> list[int]:
        return [self.free.pop() for _ in range(-(-positions // block_size))]


def layout_of(chunks: list[tuple[int, int, list[int]]]) -> StepLayout:
    """Chunks as (start, length, blocks)."""
    width = max(len(blocks) for _, _, blocks in chunks)
    tables = np.full((len(chunks), width), -1, np.int32)
    for row, (_, _, blocks) in enumerate(chunks):
        tables[row, : len(blocks)] = blocks
    return StepLayout(
        positions=np.concatenate([np.arange(s, s + n) for s, n, _ in chunks]).astype(np.int32),
        offsets=np.cumsum([0] + [n for _, n, _ in chunks]).astype(np.int32),
        starts=np.array([s for s, _, _ in chunks], np.int32),
        tables=tables,
    )


@dataclass
class Case:
    """Sequences whose keys and values stand in an arena, and the queries of their last tokens."""

    ops: Any
    shape: KVShape
    heads: int
    lengths: list[int]
    arena: Any
    blocks: list[list[int]]
    qkv: list[Array] = field(default_factory=list)

    @classmethod
    def build(cls, ops: Any, shape: KVShape, heads: int, lengths: list[int], seed: int = 0) -> Case:
        """Sequence i is the same for the same (seed, i), whatever the others are."""
        needed = sum(-(-n // shape.block_size) for n in lengths) + 3
        pool = Blocks.shuffled(needed, seed + 1)
        case = cls(ops, shape, heads, lengths, ops.kv_arena(shape, needed), [])
        width = (heads + 2 * shape.kv_heads) * shape.head_dim
        for i, length in enumerate(lengths):
            case.blocks.append(pool.take(length, shape.block_size))
            case.qkv.append(normal(1000 * seed + i, length, width))
        return case

    def run(
        self, chunks: list[tuple[int, int, int]], layer: int = 0, window: int = 0, norms: bool = False
    ) -> list[Array]:
        """One step over chunks (sequence, start, length): writes keys and values, attends; per chunk what came out."""
        dim = self.shape.head_dim
        layout = layout_of([(start, n, self.blocks[i]) for i, start, n in chunks])
        qkv = np.concatenate([self.qkv[i][start : start + n] for i, start, n in chunks])
        q, out = act(self.ops.dtype, len(qkv), self.heads * dim), act(self.ops.dtype, len(qkv), self.heads * dim)
        q_norm, k_norm = (1 + 0.1 * normal(5, dim), 1 + 0.1 * normal(6, dim)) if norms else (None, None)
        rope = rope_table(max(self.lengths), dim)
        self.ops.rope_and_write_kv(qkv, self.arena, layer, layout, rope, q_norm, k_norm, 1e-6, q)
        self.ops.attention(q, self.arena, layer, layout, dim**-0.5, window, out)
        return np.split(out, layout.offsets[1:-1])


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
        want_logprobs=column("want_logprobs", np.bool_, False),
        top_logprobs=column("top_logprobs", np.int32, 0),
    )
    assert not settings, settings
    return batch
