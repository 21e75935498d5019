"""Packed products, embeddings and norms of the kernels against numpy, and the sameness of their bits.

Tolerances: both sides round inputs to bf16 alike, products are exact in float32, so what differs is the order of K
additions: relative to the sum of magnitudes at most about K · 2⁻²⁴, far less in practice. Outputs held in bf16 may
fall on the other side of a rounding: one part in 2⁸.
"""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inflight.execution.backends import host

from .batches import assert_same_bits_in_every_batch
from .conftest import ISAS, ops_for
from .material import act, held, normal, read

SHAPES = [
    (1, 16, 16),
    (1, 200, 100),
    (2, 65, 34),
    (5, 33, 18),
    (7, 96, 64),
    (12, 32, 40),
    (13, 33, 50),
    (26, 130, 50),
    (33, 17, 2050),
    (70, 80, 96),
]


def expected_product(ops, reference, x, weight, bias=None):
    return product(reference, x, reference.pack_linear([weight], bias))


def product(ops, x, packed):
    out = np.empty((len(x), packed.rows), np.float32)
    ops.linear(x, packed, out)
    return out


def tolerance(x, weight):
    """For sums over K of products of roughly unit size."""
    return 4e-6 * x.shape[1] ** 0.5 * np.abs(weight).max() * 4


@pytest.mark.parametrize(("tokens", "rows", "columns"), SHAPES)
def test_linear(ops, reference, dtype, tokens, rows, columns):
    weight, x = normal(1, rows, columns), held(dtype, normal(2, tokens, columns))
    bias = normal(3, rows)
    out = np.full((tokens, rows), np.nan, np.float32)
    ops.linear(x, ops.pack_linear([weight], bias), out)
    want = expected_product(ops, reference, x, weight, bias)
    np.testing.assert_allclose(out, want, atol=tolerance(x, weight), rtol=1e-5)

    residual = normal(4, tokens, rows)
    added = residual.copy()
    ops.linear_residual(x, ops.pack_linear([weight], bias), added)
    np.testing.assert_array_equal(added, residual + out)


@pytest.mark.parametrize("activation", ["gelu", "gelu_tanh", "relu"])
@pytest.mark.parametrize("hold", ["act", "int8"])
@pytest.mark.parametrize(("tokens", "rows", "columns"), SHAPES)
def test_linear_act(ops, reference, dtype, tokens, rows, columns, hold, activation):
    """As the product and the function by themselves, to the bit."""
    weight, x = normal(1, rows, columns), held(dtype, normal(2, tokens, columns))
    packed = ops.pack_linear([weight[: rows // 2], weight[rows // 2 :]], normal(3, rows), hold)
    out, separate = act(dtype, tokens, rows), act(dtype, tokens, rows)
    sums = np.empty((tokens, rows), np.float32)
    ops.linear_act(x, packed, activation, out)
    ops.linear(x, packed, sums)
    ops.activate(sums, activation, separate)
    if dtype == "float32":
        np.testing.assert_array_equal(out, separate)
    else:  # what is stored fast may be rounded the other way
        np.testing.assert_allclose(read(dtype, out), read(dtype, separate), rtol=2**-7)
    want = act(dtype, tokens, rows)
    reference.linear_act(x, reference.pack_linear([weight], normal(3, rows), hold), activation, want)
    np.testing.assert_allclose(
        read(dtype, out), read(dtype, want), rtol=2**-7, atol=tolerance(x, weight) if hold == "act" else 0.05
    )


def test_logits_are_the_same_past_the_caches(ops, reference, dtype):
    """Many logits are written past the caches, where they begin on a cache line."""
    tokens, rows = 33, 1 << 15
    weight, x = normal(1, rows, 16), held(dtype, normal(2, tokens, 16))
    packed = ops.pack_linear([weight])
    aligned = host.empty((tokens, rows), np.float32)
    separate = host.empty((tokens * rows + 1,), np.float32)[1:].reshape(tokens, rows)
    ops.linear(x, packed, aligned)
    ops.linear(x, packed, separate)
    np.testing.assert_array_equal(aligned, separate)
    want = expected_product(ops, reference, x, weight)
    np.testing.assert_allclose(aligned, want, atol=tolerance(x, weight), rtol=1e-5)


@pytest.mark.parametrize(("tokens", "rows", "columns"), SHAPES)
def test_gated(ops, reference, dtype, tokens, rows, columns):
    gate, up, x = normal(1, rows, columns), normal(2, rows, columns), held(dtype, normal(3, tokens, columns))
    out, want = act(dtype, tokens, rows), act(dtype, tokens, rows)
    ops.gate_up(x, ops.pack_gate_up(gate, up), out)
    reference.gate_up(x, reference.pack_gate_up(gate, up), want)
    scale = np.abs(read(dtype, want)).max()
    rtol = 2**-7 if dtype == "bfloat16" else 1e-5
    np.testing.assert_allclose(read(dtype, out), read(dtype, want), rtol=rtol, atol=1e-5 * scale)


def test_silu_of_extremes(ops, dtype):
    weight = np.array([[1.0, 0.0]], np.float32)
    x = held(dtype, np.array([[v, 0.0] for v in (-1e4, -100, -88, -1, 0, 1, 88, 100, 1e4)], np.float32))
    out = act(dtype, len(x), 1)
    ops.gate_up(x, ops.pack_gate_up(weight, np.array([[0.0, 0.0]], np.float32) + weight), out)
    v = read(dtype, x)[:, 0].astype(np.float64)
    want = np.where(v < -700, 0, v / (1 + np.exp(-np.maximum(v, -700)))) * v
    np.testing.assert_allclose(read(dtype, out)[:, 0], want, rtol=2**-7, atol=1e-30)


@pytest.mark.parametrize("kind", ["float32", "float16", "uint16"])
def test_sources_are_converted_and_stacked(ops, reference, dtype, kind, tmp_path):
    parts = []
    for i, rows in enumerate((20, 3, 40)):
        values = normal(i, rows, 70)
        part = held("bfloat16", values) if kind == "uint16" else values.astype(kind)
        path = tmp_path / f"{i}.npy"
        np.save(path, part)
        parts.append(np.load(path, mmap_mode="r"))
    x = held(dtype, normal(9, 4, 70))
    out, want = np.empty((4, 63), np.float32), np.empty((4, 63), np.float32)
    packed = ops.pack_linear(parts)
    ops.linear(x, packed, out)
    reference.linear(x, reference.pack_linear(parts), want)
    np.testing.assert_allclose(out, want, atol=1e-4)
    assert (packed.rows, packed.columns) == (63, 70)
    assert packed.nbytes > 0


@pytest.mark.parametrize("tied", [True, False])
def test_table(ops, reference, dtype, tied):
    table = normal(1, 150, 48)
    ids = np.array([0, 149, 63, 64, 65, 7, 7], np.int32)
    pieces = [table[:1], table[1:70], table[70:]]
    packed, expected = (
        one.pack_table(table) if tied else one.pack_rows(iter(pieces), 150, 48) for one in (ops, reference)
    )
    out, want = np.full((7, 48), np.nan, np.float32), np.empty((7, 48), np.float32)
    ops.embed(packed, ids, out)
    reference.embed(expected, ids, want)
    np.testing.assert_array_equal(out, want)
    assert (packed.linear is not None) == tied
    if tied:
        x = held(dtype, normal(2, 3, 48))
        logits = np.empty((3, 150), np.float32)
        ops.linear(x, packed.linear, logits)
        np.testing.assert_allclose(logits, product(reference, x, expected.linear), atol=1e-4)


@pytest.mark.parametrize("share", [600, 300, 40, 1])
def test_a_table_of_bytes_gives_the_same_rows_on_every_backend(ops, reference, share):
    table = normal(1, 90, 600)
    table[4], table[5, 7], table[6, 3] = 0, np.nan, 1e4
    ids = np.array([0, 89, 4, 5, 6, 7, 7], np.int32)
    pieces = [table[:1], held("bfloat16", table[1:70]), table[70:].astype(np.float16)]
    packed, expected = (one.pack_rows(iter(pieces), 90, 600, share) for one in (ops, reference))
    out, want = np.full((7, 600), np.inf, np.float32), np.empty((7, 600), np.float32)
    ops.embed(packed, ids, out)
    reference.embed(expected, ids, want)
    np.testing.assert_array_equal(out, want)
    assert packed.nbytes == expected.nbytes == 90 * 600 + 90 * (600 // share) * 4
    assert (packed.rows, packed.columns) == (expected.rows, expected.columns) == (90, 600)
    # Half a step of the largest of its share, beside what bf16 has rounded.
    rows = [0, 1, 5, 6]
    step = np.abs(table[ids[rows]].reshape(len(rows), -1, share)).max(axis=2).repeat(share, axis=1) / 127
    assert (np.abs(out[rows] - table[ids[rows]]) <= 0.51 * step + 0.005 * np.abs(table[ids[rows]]))[:3].all()
    for one in (ops, reference):
        with pytest.raises(ValueError, match="600 columns have no equal shares of 7"):
            one.pack_rows(iter(pieces), 90, 600, 7)


@pytest.mark.parametrize(("tokens", "width"), [(1, 64), (3, 50), (70, 896), (5, 7)])
def test_rms_norm(ops, reference, dtype, tokens, width):
    x, weight = 3 * normal(1, tokens, width), normal(2, width)
    out, want = act(dtype, tokens, width), act(dtype, tokens, width)
    ops.rms_norm(x, weight, 1e-6, out)
    reference.rms_norm(x, weight, 1e-6, want)
    rtol = 2**-7 if dtype == "bfloat16" else 3e-6
    np.testing.assert_allclose(read(dtype, out), read(dtype, want), rtol=rtol, atol=1e-7)


@pytest.mark.parametrize("rows,columns", [(80, 96), (130, 4500)])  # in one block and in several
def test_a_token_has_the_same_bits_in_every_batch_and_on_any_threads(dtype, isa, rows, columns):
    weight, gate = normal(1, rows, columns), normal(2, rows, columns)
    assert_same_bits_in_every_batch(
        *(dtype, isa, rows, columns),
        lambda ops: (ops.pack_linear([weight], normal(4, rows)), ops.pack_gate_up(gate, weight)),
    )


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_linear_of_any_shape(data):
    dtype, isa = data.draw(st.sampled_from(["bfloat16", "float32"])), data.draw(st.sampled_from(ISAS))
    tokens, rows, columns = (data.draw(st.integers(1, n)) for n in (70, 150, 150))
    ops = ops_for(dtype, isa, data.draw(st.integers(1, 3)))
    weight, x = normal(tokens, rows, columns), held(dtype, normal(rows, tokens, columns))
    out = np.full((tokens, rows), np.nan, np.float32)
    ops.linear(x, ops.pack_linear([weight]), out)
    want = read(dtype, x).astype(np.float64) @ read(dtype, held(dtype, weight)).astype(np.float64).T
    np.testing.assert_allclose(out, want, atol=tolerance(x, weight), rtol=1e-5)


def test_wrong_arrays_are_refused_with_a_sentence(ops, dtype):
    linear = ops.pack_linear([normal(1, 8, 6)])
    x, out = held(dtype, normal(2, 3, 6)), np.empty((3, 8), np.float32)
    for bad_x, bad_out in [
        (held(dtype, normal(2, 3, 7)), out),
        (x, np.empty((2, 8), np.float32)),
        (x, np.empty((3, 8), np.float64)),
        (x[::2], np.empty((2, 8), np.float32)),
        (x.astype(np.int32), out),
        ([1, 2], out),
    ]:
        with pytest.raises(ValueError, match=r"^(x|out|an activation) must"):
            ops.linear(bad_x, linear, bad_out)
    out.setflags(write=False)
    with pytest.raises(ValueError, match="out must be writable"):
        ops.linear(x, linear, out)
    table = ops.pack_rows([normal(1, 5, 4)], 5, 4)
    with pytest.raises(ValueError, match="token id 5"):
        ops.embed(table, np.array([5], np.int32), np.empty((1, 4), np.float32))
    with pytest.raises(ValueError, match="gate_up"):
        ops.gate_up(x, linear, act(dtype, 3, 8))


def test_pieces_that_make_no_table_are_refused(ops, reference):
    for one in (ops, reference):
        for pieces in ([normal(1, 5, 4)], [normal(1, 5, 4), normal(2, 2, 4)], [normal(1, 6, 3)]):
            with pytest.raises(ValueError, match="the pieces of a table"):
                one.pack_rows(pieces, 6, 4)
