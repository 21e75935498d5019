"""Products over int4 weights: the kernels against numpy to the last bit, however weights come, and in any company.

Sums over a group are whole numbers, and the chain over groups is written in the same order on both sides, each product
rounded before it is added, so nothing may differ. Only the gated product has an exponential in it.
"""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inflight.execution.backends import int8
from inflight.execution.backends.matrices import LINEAR_CODES, Int4Matrix, ReorderedMatrix, by_output, dequantized
from inflight.execution.backends.reference import ReferenceBackend

from .batches import assert_same_bits_in_every_batch
from .conftest import ISAS, ops_for
from .material import OnArrays, act, held, normal, read, same_rows_and_logits
from .test_int4 import MXFP4, matrix, out_of_order

SHAPES = [(0, 20, 12), (1, 1, 1), (2, 65, 34), (5, 33, 18), (13, 130, 200), (33, 17, 4099), (200, 80, 96)]

MEANINGS = {
    "linear": LINEAR_CODES,
    "from 0": np.arange(16),
    "mxfp4": MXFP4,
    "widest": 17 * LINEAR_CODES.astype(int) + 8,
}


def both(one, other, x, make, rows):
    """Return two backends' results of a product over `make(backend)`: float32[T, rows] each."""
    outs = []
    for backend in (one, other):
        out = np.full((len(x), rows), np.nan, np.float32)
        backend.linear(x, make(backend), out)
        outs.append(out)
    return outs


@pytest.mark.parametrize("group", [32, 64, 128])
@pytest.mark.parametrize(("tokens", "rows", "columns"), SHAPES)
def test_linear_has_the_bits_of_its_reference(ops, reference, dtype, tokens, rows, columns, group):
    weight, bias, x = normal(1, rows, columns), normal(3, rows), held(dtype, 3 * normal(2, tokens, columns))
    outs = []
    for one in (ops, reference):
        packed = one.pack_linear([weight], bias, "int4", group)
        out, added = np.full((tokens, rows), np.nan, np.float32), normal(4, tokens, rows)
        one.linear(x, packed, out)
        one.linear_residual(x, packed, added)
        outs.append((out, added))
    np.testing.assert_array_equal(outs[0][0], outs[1][0])
    np.testing.assert_array_equal(outs[0][1], outs[1][1])
    np.testing.assert_array_equal(outs[0][1], normal(4, tokens, rows) + outs[0][0])


@pytest.mark.parametrize("meanings", MEANINGS.values(), ids=MEANINGS)
@pytest.mark.parametrize("offsets", [False, True])
@pytest.mark.parametrize("group", [16, 32, 64, 128])
def test_matrices_that_come_in_int4(ops, reference, dtype, group, offsets, meanings):
    weight, x = matrix(70, 300, group, offsets, meanings.astype(np.int8)), held(dtype, normal(2, 15, 300))
    one, other = both(ops, reference, x, lambda backend: backend.pack_linear([weight]), 70)
    np.testing.assert_array_equal(one, other)
    want = read(dtype, x) @ weight.dequantized().T
    assert np.sqrt(np.mean((one - want) ** 2) / np.mean(want**2)) < 0.02


def test_matrices_may_lie_in_memory_as_they_like(ops, reference, dtype):
    """As transposed views, which some formats yield."""
    whole, x = matrix(40, 128, 32, offsets=True), held(dtype, normal(2, 3, 128))
    turned = [np.asfortranarray(one) for one in (whole.codes, whole.scales, whole.offsets)]
    weight = Int4Matrix(*turned, 32, LINEAR_CODES)
    bytes_ = by_output(np.asfortranarray(int8.quantize(normal(3, 20, 128))[0]), np.ones(40, np.float32)[::2])
    one, other = both(ops, reference, x, lambda backend: backend.pack_linear([weight, bytes_]), 60)
    np.testing.assert_array_equal(one, other)


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_stacks_of_any_kinds_and_shapes(data):
    dtype, isa = data.draw(st.sampled_from(["bfloat16", "float32"])), data.draw(st.sampled_from(ISAS))
    tokens, columns = data.draw(st.integers(0, 40)), data.draw(st.integers(1, 150))
    parts = []
    for i in range(data.draw(st.integers(1, 4))):
        rows, plain = data.draw(st.integers(1, 70)), normal(i, 70, columns)
        kind = data.draw(st.sampled_from(["plain", "int8", "linear", "offsets", "table", "in one order", "in another"]))
        parts.append(
            plain[:rows]
            if kind == "plain"
            else by_output(*int8.quantize(plain[:rows]))
            if kind == "int8"
            else out_of_order(matrix(rows, columns, 32, i % 2 == 0), 5 if kind == "in one order" else i)
            if kind.startswith("in ")
            else matrix(rows, columns, data.draw(st.sampled_from([16, 32, 64, 128])), kind == "offsets")
            if kind != "table"
            else matrix(rows, columns, 32, meanings=MXFP4)
        )
    rows, hold = sum(part.shape[0] for part in parts), data.draw(st.sampled_from(["int8", "int4"]))
    x, bias = held(dtype, normal(rows, tokens, columns)), normal(7, rows)
    ops, ref = ops_for(dtype, isa, data.draw(st.integers(1, 3))), OnArrays(ReferenceBackend(dtype))
    one, other = both(ops, ref, x, lambda backend: backend.pack_linear(parts, bias, hold), rows)
    np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("kind", ["float32", "float16", "uint16"])
def test_any_plain_checkpoint_is_quantized(ops, reference, dtype, kind):
    parts = [normal(i, rows, 71) for i, rows in enumerate((20, 3, 40))]
    parts = [held("bfloat16", part) if kind == "uint16" else part.astype(kind) for part in parts]
    x = held(dtype, normal(9, 4, 71))
    np.testing.assert_array_equal(*both(ops, reference, x, lambda one: one.pack_linear(parts, hold="int4"), 63))


def test_numbers_of_any_size_are_quantized_alike(ops, reference, dtype):
    weight = normal(1, 50, 100) * np.logspace(-40, 36, 50, dtype=np.float32)[:, None]
    weight[:, 32:64] *= np.float32(2) ** -20
    weight[3], weight[4, :32], weight[5, 70], weight[6, 99] = 0, 0, np.nan, np.inf
    x = held(dtype, normal(2, 3, 100))
    with np.errstate(over="ignore"):
        one, other = both(ops, reference, x, lambda backend: backend.pack_linear([weight], hold="int4"), 50)
    np.testing.assert_array_equal(one, other)
    assert np.isnan(one[:, 5:7]).all() and np.isfinite(one[:, 7:]).all() and not one[:, 3].any()


PAIRS = {
    "plain": lambda: (normal(1, 45, 130), normal(2, 45, 130)),
    "int4": lambda: (matrix(45, 130, 64), matrix(45, 130, 64, offsets=True)),
    "two tables": lambda: (matrix(45, 130, 32), matrix(45, 130, 32, meanings=MXFP4)),
    "int4 and plain": lambda: (matrix(45, 130, 32), normal(2, 45, 130)),
    "in one order": lambda: (out_of_order(matrix(45, 130, 32)), out_of_order(matrix(45, 130, 32, offsets=True))),
    "in two orders": lambda: (out_of_order(matrix(45, 130, 32), 1), out_of_order(matrix(45, 130, 32), 2)),
}


@pytest.mark.parametrize("hold", ["act", "int4"])
@pytest.mark.parametrize("pair", PAIRS)
@pytest.mark.parametrize("tokens", [1, 5, 30])
def test_gated(ops, reference, dtype, tokens, pair, hold):
    gate, up = PAIRS[pair]()
    x, out, want = held(dtype, normal(3, tokens, 130)), act(dtype, tokens, 45), act(dtype, tokens, 45)
    ops.gate_up(x, ops.pack_gate_up(gate, up, hold), out)
    reference.gate_up(x, reference.pack_gate_up(gate, up, hold), want)
    rtol = 2**-7 if dtype == "bfloat16" else 1e-5
    scale = np.abs(read(dtype, want)).max(initial=0)
    np.testing.assert_allclose(read(dtype, out), read(dtype, want), rtol=rtol, atol=1e-5 * scale)


def test_weights_take_a_little_more_than_half_of_int8(isa):
    ops, weight = ops_for("bfloat16", isa, 2), normal(1, 640, 512)
    share = ops.pack_linear([weight], None, "int4").nbytes / ops.pack_linear([weight], hold="int8").nbytes
    assert share == pytest.approx((0.5 + 4 / 32) / (1 + 2 / 32), abs=0.006)


@pytest.mark.parametrize("come", ["plain", "int4", "out of order"])
def test_a_tied_table_gives_rows_and_logits(ops, reference, dtype, come):
    table = normal(1, 150, 47) if come == "plain" else matrix(150, 47, 16, offsets=True)
    table = out_of_order(table) if come == "out of order" else table
    ids, rows = same_rows_and_logits(ops, reference, dtype, table, "int4")
    meant = dequantized(table)[ids]
    assert np.all(np.abs(rows - meant) <= np.abs(meant).max(axis=1, keepdims=True) / 6)


@pytest.mark.parametrize("columns", [96, 4400])  # in one block and in two
def test_a_token_has_the_same_bits_in_every_batch_and_on_any_threads(dtype, isa, columns):
    weight, gate = normal(1, 80, columns), normal(2, 80, columns)
    offset = out_of_order(matrix(40, columns, 16, offsets=True))
    parts = [weight[:40], offset]
    assert_same_bits_in_every_batch(
        *(dtype, isa, 80, columns),
        lambda ops: (ops.pack_linear(parts, normal(4, 80), "int4"), ops.pack_gate_up(gate, weight, "int4")),
    )


def test_the_largest_sums_are_exact(ops, reference, dtype):
    """Groups of 128 of the largest products that there are, over more columns than int8 could sum."""
    codes = np.stack([np.full(140_032, 15), np.zeros(140_032), np.tile([0, 15], 70_016)]).astype(np.uint8)
    ends = np.array([-128, *[0] * 14, 127], np.int8)
    weight = Int4Matrix(codes, np.ones((3, 1094), np.float32), None, 128, ends)
    x = held(dtype, np.stack([np.full(140_032, 2.0), np.full(140_032, -2.0)]).astype(np.float32))
    one, other = both(ops, reference, x, lambda backend: backend.pack_linear([weight]), 3)
    np.testing.assert_array_equal(one, other)
    want = 2.0 * 140_032 * np.array([[127, -128, -0.5], [-127, 128, 0.5]])
    np.testing.assert_allclose(one, want, rtol=1e-4)


def test_what_cannot_be_packed_is_refused(ops):
    whole = matrix(8, 64, 32)
    with pytest.raises(ValueError, match="16, 32, 64 or 128 inputs share a scale, not 48"):
        ops.pack_linear([normal(1, 8, 96)], None, "int4", 48)
    with pytest.raises(ValueError, match=r"scales of groups must have shape \[8, 2\], not \[8, 1\]"):
        ops.pack_linear([Int4Matrix(whole.codes, whole.scales[:, :1], None, 32, LINEAR_CODES)])
    with pytest.raises(ValueError, match=r"scales of outputs must have shape \[8\], not \[7\]"):
        ops.pack_linear([by_output(np.zeros((8, 4), np.int8), np.ones(7, np.float32))])
    with pytest.raises(ValueError, match=r"order of inputs must have shape \[64\], not \[63\]"):
        ops.pack_linear([ReorderedMatrix(whole, np.arange(63, dtype=np.int32))])
    with pytest.raises(ValueError, match="order of inputs must name columns"):
        ops.pack_linear([ReorderedMatrix(whole, np.arange(1, 65, dtype=np.int32))])
    with pytest.raises(ValueError, match="equal columns"):
        ops.pack_linear([whole, normal(1, 8, 63)])
    with pytest.raises(ValueError, match="equal shapes"):
        ops.pack_gate_up(whole, matrix(9, 64, 32))
