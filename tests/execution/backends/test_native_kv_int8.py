"""Keys and values in int8: attention over them against numpy. What holds however they are held (bits in any batch,
garbage, copies) is in test_native_attention.py.

Tolerances: both sides hold the same bytes and scales; the kernel rounds queries to one part in 65,024 of a head's
largest, and probabilities (times the scales of their values) to one of the largest within 64 positions, besides the
order of float32 additions and powers of two that are off by up to 9 · 10⁻⁵ (float32: 1.4 · 10⁻⁷). A key or a value on
the edge between two bytes may fall on the other side where the rotation was fused.
"""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inflight.execution.backends import int8
from inflight.execution.backends.channel_mixing import mixed_channels
from inflight.execution.backends.protocol import KVShape, RopeTable
from inflight.execution.backends.reference import ReferenceBackend

from .conftest import ISAS, ops_for
from .material import HEAD_SHAPES, Case, OnArrays, act, held, metadata_of, normal, read, rope_table


def quantized(layers: int, block: int, kv_heads: int, dim: int) -> KVShape:
    return KVShape.uniform(layers, block, kv_heads, dim, quantized=True)


def close(dtype, out, want):
    """One step of a byte, which a few keys or values may differ by, hardly shows in a mean of many."""
    bound = dict(atol=2e-2, rtol=2e-2) if dtype == "bfloat16" else dict(atol=2e-3, rtol=1e-3)
    np.testing.assert_allclose(read(dtype, out), read(dtype, want), **bound)


@pytest.mark.parametrize(("dim", "heads", "kv_heads", "block", "window"), [*HEAD_SHAPES, (1024, 2, 1, 16, 0)])
def test_attention(ops, reference, dtype, dim, heads, kv_heads, block, window):
    lengths = [1, 16, 17, 70, 150]
    out, want = (
        Case.build(one, quantized(2, block, kv_heads, dim), heads, lengths).run(
            [(i, 0, n) for i, n in enumerate(lengths)], 1, window, norms=True
        )
        for one in (ops, reference)
    )
    for got, expected in zip(out, want, strict=True):
        close(dtype, got, expected)


def test_what_int8_costs_is_a_small_part_of_what_is_there(ops, dtype):
    """Beside the same heads held as activations are: the error of bytes, not of a mistake in scales."""
    lengths = [300]
    exact, rounded = (
        read(dtype, Case.build(ops, shape, 6, lengths).run([(0, 0, 300)])[0])
        for shape in (KVShape.uniform(1, 16, 2, 64), quantized(1, 16, 2, 64))
    )
    error = np.sqrt(np.square(rounded - exact).mean() / exact.var())
    assert 1e-3 < error < 2e-2


def test_half_the_memory(ops, dtype):
    full, half = (ops.bytes_per_block(shape) for shape in (KVShape.uniform(2, 16, 2, 64), quantized(2, 16, 2, 64)))
    assert half == 2 * 2 * 16 * 2 * (64 + 4)
    assert half / full == pytest.approx((64 + 4) / (64 * (2 if dtype == "bfloat16" else 4)))
    assert ReferenceBackend(dtype).bytes_per_block(quantized(2, 16, 2, 64)) == half


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_attention_of_any_chunks(data):
    """Sequences cut into random chunks give the bits of whole sequences, which agree with numpy's."""
    dtype, isa = data.draw(st.sampled_from(["bfloat16", "float32"])), data.draw(st.sampled_from(ISAS))
    kv_heads, group = data.draw(st.integers(1, 3)), data.draw(st.integers(1, 8))
    shape = quantized(1, data.draw(st.sampled_from([16, 32, 80])), kv_heads, data.draw(st.sampled_from([10, 32, 64])))
    lengths = data.draw(st.lists(st.integers(1, 90), min_size=1, max_size=3))
    window = data.draw(st.sampled_from([0, 0, 1, 9, 64]))
    threads = data.draw(st.integers(1, 3))
    whole = Case.build(ops_for(dtype, isa, threads), shape, kv_heads * group, lengths)
    want = [whole.run([(i, 0, n)], window=window)[0] for i, n in enumerate(lengths)]
    ref = Case.build(OnArrays(ReferenceBackend(dtype)), shape, kv_heads * group, lengths)
    for i, n in enumerate(lengths):
        close(dtype, want[i], ref.run([(i, 0, n)], window=window)[0])
    cut = Case.build(ops_for(dtype, isa, threads), shape, kv_heads * group, lengths)
    done = [0] * len(lengths)
    while any(d < n for d, n in zip(done, lengths, strict=True)):
        chunks = [(i, done[i], data.draw(st.integers(1, n - done[i]))) for i, n in enumerate(lengths) if done[i] < n]
        for (i, start, n), out in zip(chunks, cut.run(chunks, window=window), strict=True):
            np.testing.assert_array_equal(out, want[i][start : start + n])
            done[i] += n


@pytest.mark.parametrize("part", ["query", "key", "value"])
def test_what_is_broken_is_seen_as_broken_and_spoils_nothing_else(ops, dtype, part):
    shape, length, dim = quantized(1, 16, 1, 32), 100, 32
    case = Case.build(ops, shape, 1, [length])
    whole = case.run([(0, 0, length)])[0]
    at = {"query": 0, "key": dim, "value": 2 * dim}[part]
    case.qkv[0][70, at + 5] = np.nan
    out = read(dtype, case.run([(0, 0, length)])[0])
    np.testing.assert_array_equal(out[:70], read(dtype, whole)[:70])
    assert np.isnan(out[70]).all()
    assert np.isnan(out[71:]).all() if part != "query" else np.isfinite(out[71:]).all()


@pytest.mark.parametrize("part", ["query", "key", "value"])
def test_zeros(ops, reference, dtype, part):
    """A scale of 0 divides nothing, and hides no position: zeros for queries or keys weigh all positions alike."""
    dim, results = 32, []
    for one in (ops, reference):
        case = Case.build(one, quantized(1, 16, 1, dim), 1, [40])
        at = {"query": 0, "key": dim, "value": 2 * dim}[part]
        case.qkv[0][:, at : at + dim] = 0
        results.append(case.run([(0, 0, 40)], window=9)[0])
    close(dtype, *results)


def test_long_sequences_are_cut_without_changing_bits(dtype, isa):
    shape, lengths = quantized(1, 16, 1, 64), [1700, 30, 40]
    results = []
    for threads in (1, 2, 3):
        case = Case.build(ops_for(dtype, isa, threads), shape, 7, lengths)
        for i, n in enumerate(lengths):
            case.run([(i, 0, n - 1)])
        results.append(np.concatenate(case.run([(i, n - 1, 1) for i, n in enumerate(lengths)])))
    np.testing.assert_array_equal(results[0], results[1])
    np.testing.assert_array_equal(results[0], results[2])


def test_long_decode_is_right(ops, reference, dtype):
    length, results = 1100, []
    for one in (ops, reference):
        case = Case.build(one, quantized(1, 16, 1, 64), 2, [length])
        metadata = metadata_of([(0, length, case.blocks[0])])
        q = act(dtype, length, 128)
        one.rope_and_write_kv(case.qkv[0], case.cache, 0, metadata, rope_table(length, 64), None, None, 1e-6, q)
        out = act(dtype, 1, 128)
        last = metadata_of([(length - 1, 1, case.blocks[0])])
        one.attention(np.ascontiguousarray(q[-1:]), case.cache, 0, last, 0.125, 0, out)
        results.append(out)
    close(dtype, *results)


@pytest.mark.parametrize("dim", [10, 64, 72])
def test_values_are_held_by_the_rule(ops, dtype, dim):
    """A first token sees itself alone, with probability 1: out comes what is held of its values."""
    case = Case.build(ops, quantized(1, 16, 2, dim), 2, [1] * 20)
    out = np.concatenate(case.run([(i, 0, 1) for i in range(20)]))
    values = np.concatenate(case.qkv).reshape(20, 6, dim)[:, 4:]
    whole, scales = int8.quantize(read(dtype, held(dtype, values)).reshape(-1, dim))
    want = (whole * scales[:, None]).reshape(20, -1)
    np.testing.assert_allclose(read(dtype, out), want, rtol=2**-8 if dtype == "bfloat16" else 1e-6)
    assert np.abs(whole).max(axis=1).min() == 127


@pytest.mark.parametrize("dim", [2, 10, 24, 72, 128, 256])
def test_queries_and_keys_are_mixed_by_the_rule(ops, dtype, dim):
    """To the bit, where they are not rotated. Keys by their place in a block, where signs are turned: [D / 4][B][4]."""
    length, block = 40, 48
    qkv = normal(11, length, 4 * dim)
    qkv[:, ::dim] *= 50
    cache, q = ops.kv_cache(quantized(1, block, 1, dim), 1), act(dtype, length, 2 * dim)
    ops.rope_and_write_kv(qkv, cache, 0, metadata_of([(0, length, [0])]), None, None, None, 1e-6, q)
    queries, keys = qkv[:, : 2 * dim].reshape(length, 2, dim), qkv[:, None, 2 * dim : 3 * dim]
    np.testing.assert_array_equal(q, held(dtype, mixed_channels(queries, is_query=True)).reshape(length, -1))
    whole, scales = int8.quantize(read(dtype, held(dtype, mixed_channels(keys, is_query=False)[:, 0])))
    steps, padded = -(-dim // 4), -(-dim // 16) * 16
    memory = np.frombuffer(ops.block_memory(cache), np.uint8)
    lanes = memory[: steps * block * 4].reshape(steps, block, 4).transpose(1, 0, 2).reshape(block, -1)
    np.testing.assert_array_equal((lanes ^ 0x80).view(np.int8)[:length, :dim], whole)
    at = (steps * block + block // 4 * padded) * 4
    np.testing.assert_array_equal(memory[at : at + 4 * length].view(np.float32), scales)


def test_a_large_channel_of_keys_costs_little(ops, dtype):
    """As trained models have them: beside keys held as activations are, the error is as without it."""
    lengths, dim, errors = [200], 64, []
    for factor in (1, 20):
        results = []
        for shape in (KVShape.uniform(1, 16, 1, dim), quantized(1, 16, 1, dim)):
            case = Case.build(ops, shape, 2, lengths)
            case.qkv[0][:, 2 * dim + 5] *= factor
            case.qkv[0][:, [5, dim + 5]] /= factor
            results.append(read(dtype, case.run([(0, 0, 200)])[0]))
        errors.append(np.sqrt(np.square(results[1] - results[0]).mean() / results[0].var()))
    assert errors[1] < 2 * errors[0]


@pytest.mark.parametrize("rise", [1 / 4, -1 / 4, 4])
def test_scores_that_rise_or_fall_with_the_position(ops, reference, dtype, rise):
    """The largest score moves in every tile by more than what makes the kernel scale what it has mixed."""
    dim, length = 16, 700
    qkv = normal(7, length, 3 * dim)
    qkv[:, :dim] = 1
    qkv[:, dim : 2 * dim] = rise * np.arange(length)[:, None] / dim
    still = RopeTable(np.ones((length, dim // 2), np.float32), np.zeros((length, dim // 2), np.float32))
    metadata, results = metadata_of([(0, length, list(range(44)))]), []
    for one in (ops, reference):
        cache, q, out = one.kv_cache(quantized(1, 16, 1, dim), 44), act(dtype, length, dim), act(dtype, length, dim)
        one.rope_and_write_kv(qkv, cache, 0, metadata, still, None, None, 1e-6, q)
        one.attention(q, cache, 0, metadata, 1.0, 0, out)
        results.append(read(dtype, out))
    # Scores reach 2,800, and float32 has them to one part in 2²⁴.
    np.testing.assert_allclose(*results, atol=2e-2 if dtype == "bfloat16" else 2e-3)
