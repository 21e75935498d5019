"""Rotation, key/value memory and attention of the kernels against numpy, and the sameness of their bits.

Tolerances: scores and sums differ in the order of float32 additions; in bf16 mode probabilities are rounded relative to
about the largest score known when their tile is met, on the other side relative to the largest of all, so one rounding
to bf16 (2⁻⁹) of weights that sum to 1 may differ, and one of the output; the kernel's powers are off by up to 9 · 10⁻⁵.
"""

from __future__ import annotations

import numpy as np
import pytest
from breadth import first_of
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from inflight.execution.backends.channel_mixing import mixed_channels
from inflight.execution.backends.protocol import AttentionMetadata, KVLayer, KVShape, RopeTable

from .conftest import ISAS, ops_for
from .material import HEAD_SHAPES, Case, act, metadata_of, normal, position_bias, read, rope_table


def close(dtype, out, want):
    bound = dict(atol=2e-2, rtol=2e-2) if dtype == "bfloat16" else dict(atol=3e-6, rtol=2e-5)
    np.testing.assert_allclose(read(dtype, out), read(dtype, want), **bound)


@pytest.mark.parametrize("norms", [False, True])
@pytest.mark.parametrize(("dim", "heads", "kv_heads"), [(64, 4, 2), (80, 3, 1), (32, 2, 2), (10, 5, 1)])
def test_rotation_of_queries(ops, reference, dtype, dim, heads, kv_heads, norms):
    shape = KVShape.uniform(2, 16, kv_heads, dim)
    got = []
    for one in (ops, reference):
        q = act(dtype, 9, heads * dim)
        weights = (1 + normal(1, dim), 1 + normal(2, dim)) if norms else (None, None)
        metadata = metadata_of([(30, 5, [3, 1, 0]), (0, 4, [2])])
        qkv = normal(3, 9, (heads + 2 * kv_heads) * dim)
        one.rope_and_write_kv(qkv, one.kv_cache(shape, 4), 1, metadata, rope_table(40, dim), *weights, 1e-6, q)
        got.append(read(dtype, q))
    np.testing.assert_allclose(*got, rtol=2**-7 if dtype == "bfloat16" else 1e-5, atol=1e-6)


@pytest.mark.parametrize(("dim", "heads", "kv_heads", "block", "window"), HEAD_SHAPES)
def test_attention(ops, reference, dtype, dim, heads, kv_heads, block, window):
    shape = KVShape.uniform(2, block, kv_heads, dim)
    lengths = [1, 16, 17, 70, 150]
    out, want = (
        Case.build(one, shape, heads, lengths).run([(i, 0, n) for i, n in enumerate(lengths)], 1, window, norms=True)
        for one in (ops, reference)
    )
    for got, expected in zip(out, want, strict=True):
        close(dtype, got, expected)


@pytest.mark.parametrize(("soft_cap", "sinks"), [(0.7, False), (0.0, True), (20.0, True)])
@pytest.mark.parametrize("quantized", [False, True])
def test_capped_scores_and_sinks(ops, reference, dtype, isa, quantized, soft_cap, sinks):
    """Over one partition and two, whole and cut into chunks among others: the same bits."""
    shape, lengths = KVShape.uniform(1, 16, 2, 32, quantized), [1, 70, 600]
    case, ref = (Case.build(one, shape, 6, lengths) for one in (ops, reference))
    whole = case.run([(i, 0, n) for i, n in enumerate(lengths)], 0, 90, soft_cap=soft_cap, sinks=sinks)
    expected = ref.run([(i, 0, n) for i, n in enumerate(lengths)], 0, 90, soft_cap=soft_cap, sinks=sinks)
    plain = ref.run([(2, 0, 600)], 0, 90)[0]
    assert np.abs(read(dtype, plain) - read(dtype, expected[2])).max() > 0.05
    bound = dict(atol=2e-2, rtol=2e-2) if dtype == "bfloat16" or quantized else dict(atol=3e-6, rtol=2e-5)
    for got, want in zip(whole, expected, strict=True):
        np.testing.assert_allclose(read(dtype, got), read(dtype, want), **bound)
    case = Case.build(ops_for(dtype, isa, 3), shape, 6, lengths)
    case.run([(2, 0, 500)], 0, 90, soft_cap=soft_cap, sinks=sinks)
    first, last = case.run([(1, 0, 70), (2, 500, 100)], 0, 90, soft_cap=soft_cap, sinks=sinks)
    np.testing.assert_array_equal(first, whole[1])
    np.testing.assert_array_equal(last, whole[2][500:])


@pytest.mark.parametrize("window", first_of([7, 0, 1, 64, 130], 2))
@pytest.mark.parametrize(
    ("dim", "heads", "kv_heads", "block"), first_of([(64, 4, 2, 32), (10, 2, 1, 16), (32, 12, 12, 16)], 2)
)
def test_attention_to_both_sides(ops, reference, dtype, dim, heads, kv_heads, block, window):
    """Over tiles and partitions; alone and among others the same bits, whatever stands behind a text's end."""
    shape, lengths = KVShape.uniform(1, block, kv_heads, dim), [1, 16, 65, 190, 600]
    chunks = [(i, 0, n) for i, n in enumerate(lengths)]
    case, ref = (Case.build(one, shape, heads, lengths) for one in (ops, reference))
    found, want = (one.run(chunks, 0, window, causal=False) for one in (case, ref))
    for got, expected in zip(found, want, strict=True):
        close(dtype, got, expected)
    for chunk, got in zip(chunks, found, strict=True):
        (alone,) = case.run([chunk], 0, window, causal=False)
        np.testing.assert_array_equal(alone, got)
    (back,) = ref.run(chunks[3:4], 0, window)
    assert np.abs(read(dtype, back) - read(dtype, want[3])).max() > 0.05


@pytest.mark.parametrize("window", [0, 30])
@pytest.mark.parametrize("quantized", [False, True])
@pytest.mark.parametrize(("dim", "heads", "kv_heads"), first_of([(64, 4, 2), (32, 3, 3)]))
def test_what_is_learnt_of_distances(ops, reference, dtype, window, quantized, dim, heads, kv_heads):
    """It is added to scores, whichever tile and partition; it needs as many numbers as texts are long."""
    shape, lengths = KVShape.uniform(1, 16, kv_heads, dim, quantized), [1, 65, 190, 600]
    chunks = [(i, 0, n) for i, n in enumerate(lengths)]
    case, ref = (Case.build(one, shape, heads, lengths) for one in (ops, reference))
    found, want = (one.run(chunks, 0, window, causal=False, distances=True) for one in (case, ref))
    bound = dict(atol=2e-2, rtol=2e-2) if dtype == "bfloat16" or quantized else dict(atol=3e-6, rtol=2e-5)
    for chunk, got, expected in zip(chunks, found, want, strict=True):
        np.testing.assert_allclose(read(dtype, got), read(dtype, expected), **bound)
        (alone,) = case.run([chunk], 0, window, causal=False, distances=True)
        np.testing.assert_array_equal(alone, got)
    (without,) = ref.run(chunks[3:], 0, window, causal=False)
    assert np.abs(read(dtype, without) - read(dtype, want[3])).max() > 0.05
    batch, queries = case.prepared(chunks)
    out = ops.activation(queries.rows, heads * dim, "act")
    for length, causal, says in ((599, False, "reach as far"), (600, True, "both sides")):
        bias = ops.pack_vector(position_bias(heads, length))
        with pytest.raises(ValueError, match=says):
            batch.attention(queries, 0, 1.0, 0, out, 0.0, None, causal, bias)


def test_a_sink_far_above_or_below_all_scores(ops, dtype):
    """It takes everything, or nothing, and overflows nowhere."""
    shape = KVShape.uniform(1, 16, 1, 32)
    case = Case.build(ops, shape, 2, [40])
    batch, queries = case.prepared([(0, 0, 40)])
    outs = []
    for sinks in (None, np.array([1e4, -1e4], np.float32)):
        out = ops.activation(40, 64, "act")
        batch.attention(queries, 0, 1.0, 0, out, 0.0, None if sinks is None else ops.pack_vector(sinks))
        outs.append(read(dtype, out.array[:40]))
    assert not outs[1][:, :32].any()
    np.testing.assert_array_equal(outs[1][:, 32:], outs[0][:, 32:])


def test_queries_that_grow_with_their_position(ops, dtype):
    """By the factor, and keys do not."""
    dim, length = 32, 40
    shape, qkv = KVShape.uniform(1, 16, 1, dim), normal(3, length, 4 * dim)
    table, powers = rope_table(length, dim), 2.0 ** np.arange(length, dtype=np.float32).clip(max=9)
    found, caches = [], []
    for one in (table, replace(table, q_scale=powers)):
        q, cache = act(dtype, length, 2 * dim), ops.kv_cache(shape, 3)
        ops.rope_and_write_kv(qkv, cache, 0, metadata_of([(0, length, [2, 0, 1])]), one, None, None, 1e-6, q)
        found.append(read(dtype, q))
        out = act(dtype, length, 2 * dim)
        ops.attention(q * 0, cache, 0, metadata_of([(0, length, [2, 0, 1])]), 1.0, 0, out)
        caches.append(out)
    np.testing.assert_array_equal(found[1], found[0] * powers[:, None])
    np.testing.assert_array_equal(*caches)
    with pytest.raises(ValueError, match="q_scale must have shape"):
        ops.pack_rope(replace(table, q_scale=powers[1:]))


@pytest.mark.parametrize("over_all", [False, True])
@pytest.mark.parametrize("rotated", [0, 8, 24])
def test_a_part_of_each_head_is_rotated(ops, reference, dtype, rotated, over_all):
    """Rotate the first part of queries and keys; the rest stays. Norms over all heads at once come before."""
    dim, heads, kv_heads, length = 24, 4, 2, 33
    shape, qkv = KVShape.uniform(1, 16, kv_heads, dim), normal(3, length, (heads + 2 * kv_heads) * dim)
    weights = (1 + normal(1, heads * dim), 1 + normal(2, kv_heads * dim)) if over_all else (None, None)
    table = rope_table(length, rotated) if rotated else None
    metadata, results = metadata_of([(0, length, [2, 0, 1])]), []
    for one in (ops, reference):
        q, out, cache = act(dtype, length, heads * dim), act(dtype, length, heads * dim), one.kv_cache(shape, 3)
        one.rope_and_write_kv(qkv, cache, 0, metadata, table, *weights, 1e-6, q)
        one.attention(q, cache, 0, metadata, 0.2, 0, out)
        results.append((q, out))
    (q, out), (want_q, want) = results
    np.testing.assert_allclose(
        read(dtype, q), read(dtype, want_q), rtol=2**-7 if dtype == "bfloat16" else 1e-5, atol=1e-6
    )
    close(dtype, out, want)
    if not over_all:
        kept = read(dtype, q).reshape(length, heads, dim)[..., rotated:]
        given = qkv[:, : heads * dim].reshape(length, heads, dim)[..., rotated:]
        np.testing.assert_allclose(kept, given, rtol=2**-8, atol=0)


@pytest.mark.parametrize("quantized", [False, True])
def test_norms_of_heads_may_come_behind_the_rotation(ops, reference, dtype, quantized):
    """Norm queries and keys; a head that is rotated in part is normed as a whole."""
    dim, heads, kv_heads, length = 24, 4, 2, 33
    shape, qkv = KVShape.uniform(1, 16, kv_heads, dim, quantized), normal(3, length, (heads + 2 * kv_heads) * dim)
    weights = (1 + 0.5 * normal(1, dim), 1 + 0.5 * normal(2, dim))
    metadata, results = metadata_of([(0, length, [2, 0, 1])]), []
    for one in (ops, reference):
        q, out, cache = act(dtype, length, heads * dim), act(dtype, length, heads * dim), one.kv_cache(shape, 3)
        one.rope_and_write_kv(qkv, cache, 0, metadata, rope_table(length, 16), *weights, 1e-6, q, True)
        one.attention(q, cache, 0, metadata, 0.2, 0, out)
        results.append((read(dtype, q), read(dtype, out)))
    (q, out), (want_q, want) = results
    np.testing.assert_allclose(q, want_q, rtol=2**-7 if dtype == "bfloat16" else 1e-5, atol=1e-5)
    np.testing.assert_allclose(out, want, atol=3e-2 if quantized or dtype == "bfloat16" else 1e-5)
    normed = want_q.reshape(length, heads, dim)
    if quantized:
        normed = mixed_channels(normed, is_query=False)  # which undoes that of queries
    lengths = np.sqrt(np.mean((normed / weights[0]) ** 2, axis=-1))
    np.testing.assert_allclose(lengths, 1, atol=1e-2)


@pytest.mark.parametrize("quantized", [False, True])
def test_long_decode_is_split_over_threads(dtype, isa, quantized):
    """One row over several partitions: few tasks and many threads take the other way through the code."""
    shape, length = KVShape.uniform(1, 16, 1, 64, quantized), 1700
    results = []
    for threads in (1, 2, 3):
        case = Case.build(ops_for(dtype, isa, threads), shape, 2, [length])
        case.run([(0, 0, length - 1)])
        results.append(case.run([(0, length - 1, 1)])[0])
    np.testing.assert_array_equal(results[0], results[1])
    np.testing.assert_array_equal(results[0], results[2])


@pytest.mark.parametrize("window", [0, 700])
def test_one_long_sequence_among_short_ones_is_cut_without_changing_bits(dtype, isa, window):
    """Cut a long chunk for the threads to share; alone on one thread it is not cut."""
    shape, lengths = KVShape.uniform(1, 16, 2, 32), [1500, *range(20, 29)]
    alone = Case.build(ops_for(dtype, isa, 1), shape, 4, lengths)
    want = [alone.run([(i, 0, n)], window=window)[0] for i, n in enumerate(lengths)]
    for threads in (1, 2, 3):
        case = Case.build(ops_for(dtype, isa, threads), shape, 4, lengths)
        for i, n in enumerate(lengths):
            case.run([(i, 0, n - 1)], window=window)
        decoded = case.run([(i, n - 1, 1) for i, n in enumerate(lengths)], window=window)
        for got, expected in zip(decoded, want, strict=True):
            np.testing.assert_array_equal(got, expected[-1:])
        case.run([(0, 0, 1460)], window=window)
        chunk, *others = case.run(
            [(0, 1460, 40), *((i, n - 1, 1) for i, n in enumerate(lengths) if i > 0)], window=window
        )
        np.testing.assert_array_equal(chunk, want[0][1460:])
        np.testing.assert_array_equal(np.concatenate(others), np.concatenate([w[-1:] for w in want[1:]]))


@pytest.mark.parametrize("rise", [1 / 64, 1 / 4, -1 / 4, 4])
def test_scores_that_rise_or_fall_with_the_position(ops, reference, dtype, rise):
    """The largest score moves in every tile: by less than what makes the kernel scale what it has, by more, and until
    the first positions weigh nothing at all."""
    dim, length = 16, 700
    shape = KVShape.uniform(1, 16, 1, dim)
    qkv = normal(7, length, 3 * dim)
    qkv[:, :dim] = 1
    qkv[:, dim : 2 * dim] = rise * np.arange(length)[:, None] / dim  # scores are exact in float32
    still = RopeTable(np.ones((length, dim // 2), np.float32), np.zeros((length, dim // 2), np.float32))
    metadata, results = metadata_of([(0, length, list(range(44)))]), []
    for one in (ops, reference):
        cache, q, out = one.kv_cache(shape, 44), act(dtype, length, dim), act(dtype, length, dim)
        one.rope_and_write_kv(qkv, cache, 0, metadata, still, None, None, 1e-6, q)
        one.attention(q, cache, 0, metadata, 1.0, 0, out)
        results.append(read(dtype, out))
        if one is ops:  # whatever was scaled when, a chunk's queries have the bits that they have in the whole
            chunk = act(dtype, 300, dim)
            ops.attention(
                np.ascontiguousarray(q[400:]), cache, 0, metadata_of([(400, 300, list(range(44)))]), 1.0, 0, chunk
            )
            np.testing.assert_array_equal(chunk, out[400:])
    # Scores reach 2,800, and are rounded once more (to 2⁻²⁴) where multiply-adds are not fused.
    np.testing.assert_allclose(*results, atol=2e-2 if dtype == "bfloat16" else 1e-4)


def test_long_decode_is_right(ops, reference, dtype):
    shape, length = KVShape.uniform(1, 16, 1, 64), 1100
    results = []
    for one in (ops, reference):
        case = Case.build(one, shape, 2, [length])
        metadata = metadata_of([(0, length, case.blocks[0])])
        q = act(dtype, length, 128)
        one.rope_and_write_kv(case.qkv[0], case.cache, 0, metadata, rope_table(length, 64), None, None, 1e-6, q)
        last = metadata_of([(length - 1, 1, case.blocks[0])])
        out = act(dtype, 1, 128)
        one.attention(np.ascontiguousarray(q[-1:]), case.cache, 0, last, 0.125, 0, out)
        results.append(out)
    close(dtype, *results)


@pytest.mark.parametrize("quantized", [False, True])
@pytest.mark.parametrize("window", [0, 40])
def test_a_query_has_the_same_bits_in_every_batch_and_chunking(dtype, isa, window, quantized):
    shape, lengths = KVShape.uniform(1, 16, 2, 64, quantized), [600, 33, 129]
    alone = Case.build(ops_for(dtype, isa, 1), shape, 6, lengths)
    want = [alone.run([(i, 0, n)], window=window)[0] for i, n in enumerate(lengths)]

    # Chunked, beside others, on several threads, and at last token by token.
    case = Case.build(ops_for(dtype, isa, 3), shape, 6, lengths)
    first = case.run([(2, 0, 50), (0, 0, 257), (1, 0, 32)], window=window)
    np.testing.assert_array_equal(first[0], want[2][:50])
    np.testing.assert_array_equal(first[1], want[0][:257])
    np.testing.assert_array_equal(first[2], want[1][:32])
    second = case.run([(0, 257, 342), (1, 32, 1), (2, 50, 78)], window=window)
    np.testing.assert_array_equal(second[0], want[0][257:599])
    np.testing.assert_array_equal(second[1], want[1][32:])
    np.testing.assert_array_equal(second[2], want[2][50:128])
    third = case.run([(2, 128, 1), (0, 599, 1)], window=window)
    np.testing.assert_array_equal(third[0], want[2][128:])
    np.testing.assert_array_equal(third[1], want[0][599:])


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_attention_of_any_chunks(data):
    """Sequences cut into random chunks give the bits of whole sequences, which agree with numpy's."""
    dtype, isa = data.draw(st.sampled_from(["bfloat16", "float32"])), data.draw(st.sampled_from(ISAS))
    kv_heads, group = data.draw(st.integers(1, 3)), data.draw(st.integers(1, 4))
    shape = KVShape.uniform(
        1, data.draw(st.sampled_from([16, 32, 80])), kv_heads, data.draw(st.sampled_from([16, 32, 64]))
    )
    lengths = data.draw(st.lists(st.integers(1, 90), min_size=1, max_size=3))
    window = data.draw(st.sampled_from([0, 0, 1, 9, 64]))
    threads = data.draw(st.integers(1, 3))
    whole = Case.build(ops_for(dtype, isa, threads), shape, kv_heads * group, lengths)
    want = [whole.run([(i, 0, n)], window=window)[0] for i, n in enumerate(lengths)]
    cut = Case.build(ops_for(dtype, isa, threads), shape, kv_heads * group, lengths)
    done = [0] * len(lengths)
    while any(d < n for d, n in zip(done, lengths, strict=True)):
        chunks = [(i, done[i], data.draw(st.integers(1, n - done[i]))) for i, n in enumerate(lengths) if done[i] < n]
        for (i, start, n), out in zip(chunks, cut.run(chunks, window=window), strict=True):
            np.testing.assert_array_equal(out, want[i][start : start + n])
            done[i] += n


@pytest.mark.parametrize("quantized", [False, True])
@pytest.mark.parametrize("length", [1, 16, 37, 63, 1101])
def test_garbage_in_unwritten_slots_does_not_matter(dtype, isa, length, quantized):
    """Blocks full of NaN (of bytes with scale NaN), as if another sequence had left them, then written up to
    `length`."""
    shape = KVShape.uniform(1, 16, 1, 32, quantized)
    clean = Case.build(ops_for(dtype, isa, 2), shape, 3, [length])
    want = clean.run([(0, 0, length)])[0]
    dirty = Case.build(ops_for(dtype, isa, 2), shape, 3, [length])
    blocks = list(range(dirty.cache.num_blocks))
    n = len(blocks) * 16
    nan = np.full((n, 5 * 32), np.nan, np.float32)
    dirty.ops.rope_and_write_kv(
        nan, dirty.cache, 0, metadata_of([(0, n, blocks)]), rope_table(n, 32), None, None, 1e-6, act(dtype, n, 96)
    )
    np.testing.assert_array_equal(dirty.run([(0, 0, length)])[0], want)
    assert np.isfinite(read(dtype, want)).all()


def test_blocks_before_the_window_are_never_looked_up(dtype, isa):
    """A sliding window lets a sequence give its oldest blocks back."""
    shape, length, window = KVShape.uniform(1, 16, 1, 32), 200, 30
    case = Case.build(ops_for(dtype, isa, 2), shape, 3, [length])
    want = case.run([(0, 0, length)], window=window)[0]
    gone = (length - 10 - window + 1) // 64 * 64 // 16  # positions are taken by 64
    case.blocks[0][:gone] = [-1] * gone
    np.testing.assert_array_equal(case.run([(0, length - 10, 10)], window=window)[0], want[-10:])


def test_a_step_without_tokens(ops, dtype):
    shape = KVShape.uniform(1, 16, 1, 32)
    none = AttentionMetadata(*(np.zeros(n, np.int32) for n in (0, 1, 0)), np.zeros((1, 0, 1), np.int32))
    q = act(dtype, 0, 64)
    ops.rope_and_write_kv(
        np.zeros((0, 128), np.float32), ops.kv_cache(shape, 1), 0, none, rope_table(1, 32), None, None, 1e-6, q
    )
    ops.attention(q, ops.kv_cache(shape, 1), 0, none, 1.0, 0, act(dtype, 0, 64))
    with pytest.raises(ValueError, match="query_start"):
        empty = np.zeros(0, np.int32)
        ops.attention(
            q,
            ops.kv_cache(shape, 1),
            0,
            AttentionMetadata(empty, empty, empty, none.block_tables),
            1.0,
            0,
            act(dtype, 0, 64),
        )


@pytest.mark.parametrize("quantized", [False, True])
def test_copied_blocks_hold_what_their_sources_held(ops, reference, quantized):
    shape = KVShape.uniform(3, 16, 2, 32, quantized)
    for one in (ops, reference):
        case = Case.build(one, shape, 4, [40])
        want = [case.run([(0, 0, 40)], layer)[0] for layer in range(3)]
        spare = [b for b in range(case.cache.num_blocks) if b not in case.blocks[0]]
        one.copy_blocks(case.cache, case.blocks[0], spare)
        case.blocks[0] = spare
        for layer in range(3):
            np.testing.assert_array_equal(case.run([(0, 39, 1)], layer)[0], want[layer][39:])
        assert case.cache.shape == shape
        assert case.cache.nbytes == case.cache.num_blocks * one.bytes_per_block(shape)


def test_wrong_tables_are_refused_with_a_sentence(ops, dtype):
    shape = KVShape.uniform(1, 16, 1, 32)
    cache, q, out = ops.kv_cache(shape, 2), act(dtype, 3, 64), act(dtype, 3, 64)
    for chunks, why in [
        ([(20, 3, [0])], "too short"),
        ([(0, 3, [2])], "names block 2"),
        ([(20, 3, [-1, 0])], "block -1"),
    ]:
        with pytest.raises(ValueError, match=why):
            ops.attention(q, cache, 0, metadata_of(chunks), 1.0, 0, out)
    with pytest.raises(ValueError, match="block -1"):  # of the tile in which the window begins
        ops.attention(q, cache, 0, metadata_of([(20, 3, [-1, 0])]), 1.0, 4, out)
    where = metadata_of([(0, 3, [0]), (0, 0, [0])])
    with pytest.raises(ValueError, match="query_start must ascend"):
        ops.attention(q, cache, 0, where._replace(query_start=np.array([0, 2**30, 3], np.int32)), 1.0, 0, out)
    with pytest.raises(ValueError, match="layer 1"):
        ops.attention(q, cache, 1, metadata_of([(0, 3, [0])]), 1.0, 0, out)
    with pytest.raises(ValueError, match="rope table"):
        ops.rope_and_write_kv(
            normal(0, 3, 128), cache, 0, metadata_of([(0, 3, [0])]), rope_table(2, 32), None, None, 1e-6, q
        )
    with pytest.raises(ValueError, match="multiple of 16"):
        ops.kv_cache(KVShape.uniform(1, 20, 1, 32), 2)


@pytest.mark.parametrize("quantized", [False, True])
def test_layers_of_each_group_have_their_keys_in_its_blocks(ops, reference, dtype, quantized):
    """Four layers in two groups, of which one sees 20 positions and holds nothing before them."""
    heads, length, window = 4, 100, 20
    grouped, alone = (
        KVShape.uniform(2, 16, 2, 32, quantized, groups=(0, 1, 1, 0)),
        KVShape.uniform(4, 16, 2, 32, quantized),
    )
    blocks = np.random.default_rng(4).permutation(14).astype(np.int32).reshape(2, 1, 7)
    blocks[1, 0, :3] = 14  # as padding: there, and unused
    for one in (ops, reference):
        cache = one.kv_cache(grouped, 15)
        assert cache.nbytes == 15 * one.bytes_per_block(grouped) == 15 * one.bytes_per_block(alone) / 2
        for layer in (0, 1, 2, 3):
            got = []
            for table, memory, at in ((blocks, cache, layer), (blocks[:1], one.kv_cache(alone, 15), layer)):
                where = metadata_of([(0, length, [0] * 7)])._replace(block_tables=np.ascontiguousarray(table))
                qkv, q = normal(layer, length, (heads + 4) * 32), act(dtype, length, heads * 32)
                rope, width = rope_table(length, 32), window if layer in (1, 2) else 0
                one.rope_and_write_kv(qkv, memory, at, where, rope, None, None, 1e-6, q)
                last = metadata_of([(90, 10, [0] * 7)])._replace(block_tables=where.block_tables)
                out = act(dtype, 10, heads * 32)
                one.attention(np.ascontiguousarray(q[90:]), memory, at, last, 0.2, width, out)
                got.append(out)
            np.testing.assert_array_equal(*got)
    with pytest.raises(ValueError, match="2 groups, and there are block tables for 1"):
        where = metadata_of([(0, 3, [0])])
        ops.attention(act(dtype, 3, 128), ops.kv_cache(grouped, 2), 0, where, 0.2, 0, act(dtype, 3, 128))


@pytest.mark.parametrize("quantized", [False, True])
def test_layers_of_one_block_have_heads_of_their_own(ops, reference, dtype, quantized):
    """Wide heads beside many narrow ones beside one that is no multiple of a panel, and a layer that keeps nothing:
    each computes what it does in a cache of its own, before and after its blocks are copied."""
    kept = (KVLayer(0, 1, 64, 64), KVLayer(1, 4, 16, 16), None, KVLayer(1, 2, 24, 24), KVLayer(0, 3, 8, 8))
    shape, length, tables = KVShape(16, kept, quantized), 60, np.array([[[5, 0, 2, 7]], [[6, 1, 9, 3]]], np.int32)

    def where_of(tables):
        return metadata_of([(0, length, [0] * 4)])._replace(block_tables=np.ascontiguousarray(tables))

    for one in (ops, reference):
        together = one.kv_cache(shape, 20)
        assert together.nbytes == 20 * one.bytes_per_block(shape)
        alone = {
            index: one.kv_cache(KVShape.uniform(1, 16, *_heads(layer), quantized), 10) for index, layer in _of(kept)
        }
        queries = {}
        for index, layer in _of(kept):  # all are written before any is read
            heads, (kv_heads, dim) = 2 * layer.kv_heads, _heads(layer)
            qkv, q = normal(index, length, (heads + 2 * kv_heads) * dim), act(dtype, length, heads * dim)
            for memory, at, table in ((together, index, tables), (alone[index], 0, tables[layer.group][None])):
                one.rope_and_write_kv(qkv, memory, at, where_of(table), rope_table(length, dim), None, None, 1e-6, q)
            queries[index] = q
        for moved in (0, 10):
            for index, layer in _of(kept):
                want, got = (act(dtype, *queries[index].shape) for _ in range(2))
                one.attention(queries[index], alone[index], 0, where_of(tables[layer.group][None]), 0.2, 0, want)
                one.attention(queries[index], together, index, where_of(tables + moved), 0.2, 0, got)
                np.testing.assert_array_equal(got, want)
            one.copy_blocks(together, list(range(10)), list(range(10, 20)))
        with pytest.raises(ValueError, match="layer 2 is not in the KV cache"):
            one.attention(q, together, 2, where_of(tables), 0.2, 0, act(dtype, *q.shape))


@pytest.mark.parametrize("quantized", [False, True])
def test_keys_may_be_the_values_and_values_are_normed(ops, reference, dtype, quantized):
    """Without rotation: what attention makes of keys alone is what it makes of keys and the same as values; queries
    alone read what is there."""
    heads, kv_heads, dim, length = 4, 2, 24, 50
    shape, where = KVShape.uniform(2, 16, kv_heads, dim, quantized), metadata_of([(0, length, [2, 0, 3, 1])])
    qk, ones = 3 * normal(1, length, (heads + kv_heads) * dim), np.ones(dim, np.float32)
    outs = []
    for one in (ops, reference):
        cache, q = one.kv_cache(shape, 4), act(dtype, length, heads * dim)
        both = np.concatenate([qk, qk[:, heads * dim :]], axis=1)
        for layer, rows in enumerate((qk, both)):
            one.rope_and_write_kv(rows, cache, layer, where, None, ones, ones, 1e-6, q, False, ones)
        again = act(dtype, length, heads * dim)
        alone = np.ascontiguousarray(qk[:, : heads * dim])
        one.rope_and_write_kv(alone, cache, 1, where, None, ones, None, 1e-6, again)
        np.testing.assert_array_equal(again, q)
        found = [act(dtype, length, heads * dim) for _ in range(2)]
        for layer, out in enumerate(found):
            one.attention(q, cache, layer, where, 0.2, 0, out)
        np.testing.assert_array_equal(*found)
        outs.append(found[0])
    np.testing.assert_allclose(*(read(dtype, out) for out in outs), atol=2e-2 if dtype == "bfloat16" else 1e-3)
    # The first query sees its own value alone: the key as it came, normed.
    key = qk[0, heads * dim :].reshape(kv_heads, 1, dim)
    normed = np.broadcast_to(key / np.sqrt(np.mean(key**2, axis=2, keepdims=True)), (kv_heads, 2, dim))
    np.testing.assert_allclose(read(dtype, outs[0])[0], normed.reshape(-1), atol=3e-2)
    with pytest.raises(ValueError, match="queries, then keys if any, then values if any"):
        wrong = normal(1, length, (heads + 1) * dim)
        ops.rope_and_write_kv(wrong, ops.kv_cache(shape, 4), 0, where, None, None, None, 1e-6, q)


def test_shapes_that_cannot_be_are_refused(ops):
    for kept, why in [
        ((None,), "a layer that keeps keys"),
        ((KVLayer(2, 1, 16, 16),), "no group 2 of 1 layers"),
        ((KVLayer(0, 1, 15, 16),), "even head dimensions"),
    ]:
        with pytest.raises(ValueError, match=why):
            ops.kv_cache(KVShape(16, kept), 1)


def _of(kept):
    return [(index, layer) for index, layer in enumerate(kept) if layer is not None]


def _heads(layer):
    return layer.kv_heads, layer.key_dim
