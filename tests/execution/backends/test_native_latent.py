"""Latent attention of the kernels against numpy: products by head, what is written, what is read; and the sameness of
their bits. Tolerances as in test_native_attention.py and test_native_kv_int8.py."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from inflight.execution.backends import int4
from inflight.execution.backends.matrices import ReorderedMatrix
from inflight.execution.backends.native import NativeBackend
from inflight.execution.backends.protocol import KVLayer, KVShape

from .conftest import ops_for
from .material import Array, Blocks, OnArrays, act, held, metadata_of, normal, read, rope_table


def by_head(ops: OnArrays, weight: Any, x: Array, stride: int) -> Array:
    """The first numbers of each head; those behind them must stay as they are."""
    out = act(ops.dtype, len(x), weight.count * stride)
    before = out.copy().reshape(len(x), weight.count, stride)
    ops._pass().by_head(ops.activation_of(x), weight, ops.activation_of(out))
    found = out.reshape(len(x), weight.count, stride)
    np.testing.assert_array_equal(found[:, :, weight.rows :], before[:, :, weight.rows :])
    return np.ascontiguousarray(found[:, :, : weight.rows])


def matrices(ops: OnArrays, heads: int, rows: int, columns: int, hold: str) -> Any:
    return ops.pack_heads([ops.pack_linear([normal(h, rows, columns)], None, hold) for h in range(heads)])


@pytest.mark.parametrize("hold", ["act", "int8", "int4"])
@pytest.mark.parametrize(("heads", "rows", "columns", "stride"), [(5, 48, 20, 56), (3, 17, 64, 17), (2, 512, 128, 576)])
@pytest.mark.parametrize("tokens", [1, 40])
def test_products_by_head(ops, reference, dtype, hold, heads, rows, columns, stride, tokens):
    x = held(dtype, normal(99, tokens, heads * columns))
    got, want = (by_head(one, matrices(one, heads, rows, columns, hold), x, stride) for one in (ops, reference))
    bound = dict(atol=0.3, rtol=2**-6) if dtype == "bfloat16" else dict(atol=2e-3, rtol=2e-4)
    np.testing.assert_allclose(read(dtype, got), read(dtype, want), **bound)


@pytest.mark.parametrize("hold", ["act", "int8", "int4"])
def test_a_product_by_head_has_the_same_bits_in_any_batch(ops, dtype, isa, hold):
    """In parts of some heads, too: 700 tokens are more than all heads are taken for at once."""
    weight = matrices(ops, 6, 512, 32, hold)
    x = held(dtype, normal(1, 700, 6 * 32))
    whole = by_head(ops, weight, x, 576)
    other = ops_for(dtype, isa, 1)
    again = matrices(other, 6, 512, 32, hold)
    for first, count in [(0, 1), (3, 2), (5, 31), (690, 10)]:
        alone = by_head(other, again, np.ascontiguousarray(x[first : first + count]), 512)
        np.testing.assert_array_equal(alone, whole[first : first + count])


def test_matrices_of_heads_must_be_alike(dtype):
    ops = NativeBackend(dtype, 1)
    one = ops.pack_linear([normal(0, 8, 4)])
    for other in (
        ops.pack_linear([normal(0, 8, 6)]),
        ops.pack_linear([normal(0, 8, 4)], hold="int8"),
        ops.pack_linear([normal(0, 8, 4)], bias=np.ones(8, np.float32)),
    ):
        with pytest.raises(ValueError, match="the matrices of heads must have equal shapes, held alike"):
            ops.pack_heads([one, other])


def test_matrices_of_heads_have_their_inputs_in_order(dtype):
    ops = NativeBackend(dtype, 1)
    matrix = int4.quantize(normal(0, 8, 64), 32)
    reordered = ReorderedMatrix(matrix, np.roll(np.arange(64, dtype=np.int32), 1))
    assert ops.pack_heads([ops.pack_linear([matrix])]).columns == 64
    with pytest.raises(ValueError, match="the inputs of heads cannot be out of order"):
        ops.pack_heads([ops.pack_linear([reordered])])


# -- attention ---------------------------------------------------------------------------------------------------------
RANK, ROTATED, NOPE = 48, 12, 20


@dataclass
class Latent:
    """Sequences whose compressed vectors and rotated keys stand in a KV cache, in two layers."""

    ops: OnArrays
    heads: int
    lengths: list[int]
    quantized: bool = False
    block: int = 16
    rank: int = RANK

    def __post_init__(self) -> None:
        kept = KVLayer(0, 1, self.rank + ROTATED, 0)
        shape = KVShape(self.block, (kept, kept), self.quantized)
        blocks = Blocks.shuffled(sum(-(-n // self.block) for n in self.lengths) + 3, 1)
        self.cache = self.ops.kv_cache(shape, len(blocks.free))
        self.blocks = [blocks.take(length, self.block) for length in self.lengths]
        self.rope = self.ops.pack_rope(rope_table(max(self.lengths), ROTATED))
        self.norm = self.ops.pack_vector(1 + 0.1 * normal(6, self.rank))
        self.q = [normal(10 + i, n, self.heads * (NOPE + ROTATED)) for i, n in enumerate(self.lengths)]
        self.kv = [normal(50 + i, n, self.rank + ROTATED) for i, n in enumerate(self.lengths)]
        self.compressed = [normal(90 + i, n, self.heads * self.rank) for i, n in enumerate(self.lengths)]

    def run(self, chunks: list[tuple[int, int, int]]) -> tuple[list[Array], Array, Array]:
        """One step over chunks (sequence, start, length): of each what came out; and the two parts of all queries."""
        metadata = metadata_of([(start, n, self.blocks[i]) for i, start, n in chunks])

        def rows(of: list[Array]) -> Array:
            return np.concatenate([of[i][start : start + n] for i, start, n in chunks])

        on, dtype, width = self.ops.activation_of, self.ops.dtype, self.rank + ROTATED
        q, kv = rows(self.q), rows(self.kv)
        nope, queries = act(dtype, len(q), self.heads * NOPE), act(dtype, len(q), self.heads * width)
        out = act(dtype, len(q), self.heads * self.rank)
        compressed = held(dtype, rows(self.compressed)).reshape(len(q), self.heads, self.rank)
        queries.reshape(len(q), self.heads, width)[:, :, : self.rank] = compressed
        batch = self.ops.over(metadata, self.cache)
        batch.rope_and_write_latent(on(q), on(kv), 1, self.rope, self.norm, 1e-6, on(nope), on(queries))
        np.testing.assert_array_equal(queries.reshape(len(q), self.heads, width)[:, :, : self.rank], compressed)
        batch.attention(on(queries), 1, 0.15, 0, on(out))
        return np.split(out, metadata.query_start[1:-1]), nope, queries


@pytest.mark.parametrize("quantized", [False, True])
@pytest.mark.parametrize(("heads", "block", "rank"), [(4, 16, 48), (130, 16, 16), (1, 48, 512)])
def test_latent_attention(ops, reference, dtype, quantized, heads, block, rank):
    lengths = [1, 16, 17, 70, 150]
    chunks = [(i, 0, n) for i, n in enumerate(lengths)]
    ours, theirs = (Latent(one, heads, lengths, quantized, block, rank).run(chunks) for one in (ops, reference))
    tolerance = 2e-2 if dtype == "bfloat16" or quantized else 2e-5
    for got, want in zip(ours[0], theirs[0], strict=True):
        np.testing.assert_allclose(read(dtype, got), read(dtype, want), atol=tolerance, rtol=tolerance)
    for got, want in zip(ours[1:], theirs[1:], strict=True):
        np.testing.assert_allclose(read(dtype, got), read(dtype, want), rtol=2**-7, atol=1e-5)


@pytest.mark.parametrize("quantized", [False, True])
def test_chunks_company_and_threads_change_no_bit(ops, dtype, isa, quantized):
    """Over one partition and two, tasks that are cut and whole ones."""
    lengths = [600, 90, 20]
    whole = Latent(ops, 16, lengths, quantized).run([(i, 0, n) for i, n in enumerate(lengths)])[0]
    case = Latent(ops_for(dtype, isa, 3), 16, lengths, quantized)
    parts: list[list[Array]] = [[] for _ in lengths]
    for step in ([(0, 0, 7), (1, 0, 33)], [(0, 7, 505)], [(2, 0, 20), (0, 512, 1), (1, 33, 57)], [(0, 513, 87)]):
        for (sequence, _, _), found in zip(step, case.run(step)[0], strict=True):
            parts[sequence].append(found)
    for found, want in zip(parts, whole, strict=True):
        np.testing.assert_array_equal(np.concatenate(found), want)


@pytest.mark.parametrize("quantized", [False, True])
def test_garbage_behind_the_last_position_is_not_seen(ops, dtype, quantized):
    clean = Latent(ops, 4, [21], quantized)
    want = clean.run([(0, 0, 21)])[0][0]
    dirty = Latent(ops, 4, [64], quantized)
    dirty.kv[0][:21], dirty.q[0][:21] = clean.kv[0], clean.q[0]
    dirty.compressed[0][:21] = clean.compressed[0]
    dirty.kv[0][21:] = np.nan
    dirty.run([(0, 0, 64)])
    np.testing.assert_array_equal(dirty.run([(0, 0, 21)])[0][0], want)


def test_of_a_token_one_vector_is_kept(ops, reference, dtype):
    """For all heads, and no values beside it."""
    item = 2 if dtype == "bfloat16" else 4
    for one in (ops, reference):
        for quantized, expected in ((False, 576 * item), (True, 576 + 4)):
            shape = KVShape(16, (KVLayer(0, 1, 576, 0),) * 3, quantized)
            assert one.bytes_per_block(shape) == 3 * 16 * expected


def test_layers_with_values_and_without_have_operations_of_their_own(ops, dtype):
    case = Latent(ops, 2, [20])
    batch = ops.over(metadata_of([(0, 20, case.blocks[0])]), case.cache)
    qkv, out = normal(1, 20, 4 * 60), act(dtype, 20, 2 * 60)
    with pytest.raises(ValueError, match="values"):
        batch.rope_and_write_kv(ops.activation_of(qkv), 0, None, None, None, 1e-6, ops.activation_of(out))
