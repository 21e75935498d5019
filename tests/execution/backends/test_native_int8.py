"""Products over int8 weights: the kernels against numpy to the last bit, and what quantizing does to a number.

Sums are whole numbers, and what follows them is written in the same order on both sides, so nothing may differ. Only
the gated product has an exponential in it, which numpy computes by another polynomial.
"""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inflight.execution.backends import grouped, int8
from inflight.execution.backends.matrices import in_int8
from inflight.execution.backends.reference import ReferenceBackend

from .batches import assert_same_bits_in_every_batch
from .conftest import ISAS, ops_for
from .material import OnArrays, act, held, normal, read, same_rows_and_logits

SHAPES = [
    (0, 20, 12),
    (1, 1, 1),
    (1, 200, 100),
    (2, 65, 34),
    (5, 33, 18),
    (6, 64, 64),
    (7, 97, 65),
    (13, 130, 51),
    (33, 17, 4099),
    (200, 80, 96),
]


@pytest.mark.parametrize(("tokens", "rows", "columns"), SHAPES)
def test_linear_has_the_bits_of_its_reference(ops, reference, dtype, tokens, rows, columns):
    weight, bias = normal(1, rows, columns), normal(3, rows)
    x = held(dtype, 3 * normal(2, tokens, columns))
    outs = []
    for one in (ops, reference):
        packed = one.pack_linear([weight], bias, hold="int8")
        out = np.full((tokens, rows), np.nan, np.float32)
        one.linear(x, packed, out)
        added = normal(4, tokens, rows)
        one.linear_residual(x, packed, added)
        outs.append((out, added))
    np.testing.assert_array_equal(outs[0][0], outs[1][0])
    np.testing.assert_array_equal(outs[0][1], outs[1][1])
    np.testing.assert_array_equal(outs[0][1], normal(4, tokens, rows) + outs[0][0])


@pytest.mark.parametrize(("tokens", "rows", "columns"), SHAPES)
def test_gated(ops, reference, dtype, tokens, rows, columns):
    gate, up, x = normal(1, rows, columns), normal(2, rows, columns), held(dtype, normal(3, tokens, columns))
    out, want = act(dtype, tokens, rows), act(dtype, tokens, rows)
    ops.gate_up(x, ops.pack_gate_up(gate, up, hold="int8"), out)
    reference.gate_up(x, reference.pack_gate_up(gate, up, hold="int8"), want)
    rtol = 2**-7 if dtype == "bfloat16" else 1e-5
    scale = np.abs(read(dtype, want)).max(initial=0)
    np.testing.assert_allclose(read(dtype, out), read(dtype, want), rtol=rtol, atol=1e-6 * scale)


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_linear_of_any_shape(data):
    dtype, isa = data.draw(st.sampled_from(["bfloat16", "float32"])), data.draw(st.sampled_from(ISAS))
    tokens, rows, columns = (
        data.draw(st.integers(0, 70)),
        data.draw(st.integers(1, 150)),
        data.draw(st.integers(1, 150)),
    )
    ops, ref = ops_for(dtype, isa, data.draw(st.integers(1, 3))), OnArrays(ReferenceBackend(dtype))
    weight, x = normal(tokens, rows, columns), held(dtype, normal(rows, tokens, columns))
    out, want = np.full((tokens, rows), np.nan, np.float32), np.empty((tokens, rows), np.float32)
    ops.linear(x, ops.pack_linear([weight], hold="int8"), out)
    ref.linear(x, ref.pack_linear([weight], hold="int8"), want)
    np.testing.assert_array_equal(out, want)


@pytest.mark.parametrize("kind", ["float32", "float16", "uint16"])
def test_any_checkpoint_is_quantized_and_stacked(ops, reference, dtype, kind):
    parts = [normal(i, rows, 71) for i, rows in enumerate((20, 3, 40))]
    parts = [held("bfloat16", part) if kind == "uint16" else part.astype(kind) for part in parts]
    x = held(dtype, normal(9, 4, 71))
    out, want = np.empty((4, 63), np.float32), np.empty((4, 63), np.float32)
    packed = ops.pack_linear(parts, hold="int8")
    ops.linear(x, packed, out)
    reference.linear(x, reference.pack_linear(parts, hold="int8"), want)
    np.testing.assert_array_equal(out, want)
    assert (packed.rows, packed.columns) == (63, 71)


def test_weights_take_half_of_bf16(isa):
    ops, weight = ops_for("bfloat16", isa, 2), normal(1, 640, 512)
    assert 0.5 <= ops.pack_linear([weight], hold="int8").nbytes / ops.pack_linear([weight]).nbytes < 0.54


def test_a_tied_table_gives_rows_and_logits(ops, reference, dtype):
    table = normal(1, 150, 47)
    ids, rows = same_rows_and_logits(ops, reference, dtype, table, "int8")
    error = np.linalg.norm(rows - table[ids], axis=1)
    assert np.all(error < 0.008 * np.linalg.norm(table[ids], axis=1))


@pytest.mark.parametrize("columns", [96, 8300])  # in one block and in two
def test_a_token_has_the_same_bits_in_every_batch_and_on_any_threads(dtype, isa, columns):
    weight, gate = normal(1, 80, columns), normal(2, 80, columns)
    assert_same_bits_in_every_batch(
        *(dtype, isa, 80, columns),
        lambda ops: (ops.pack_linear([weight], normal(4, 80), "int8"), ops.pack_gate_up(gate, weight, "int8")),
    )


def test_sums_do_not_saturate(ops, reference, dtype):
    """The largest products that there are, all of one sign, and of both."""
    columns = 9000
    weight = np.stack([np.full(columns, 1.0), np.full(columns, -1.0), np.tile([1.0, -1.0], columns // 2)])
    x = held(dtype, np.stack([np.full(columns, 2.0), np.full(columns, -2.0)]).astype(np.float32))
    out = np.empty((2, 3), np.float32)
    ops.linear(x, ops.pack_linear([weight.astype(np.float32)], hold="int8"), out)
    np.testing.assert_allclose(out, [[18000, -18000, 0], [-18000, 18000, 0]], rtol=1e-4)


def test_rows_that_cannot_be_scaled(ops, reference, dtype):
    """All zeros, next to nothing, infinite, not a number: their own row only, the same on both sides."""
    x = normal(1, 6, 40)
    x[1], x[2], x[3, 7], x[4, 39], x[5, 0] = 0, 1e-38, np.inf, np.nan, -np.inf
    weight = normal(2, 30, 40)
    weight[3], weight[29, 5] = 0, np.nan
    outs = []
    for one in (ops, reference):
        out = np.empty((6, 30), np.float32)
        one.linear(held(dtype, x), one.pack_linear([weight], hold="int8"), out)
        outs.append(out)
    np.testing.assert_array_equal(outs[0], outs[1])
    fine = [row for row in range(30) if row != 29]
    assert np.all(outs[0][1:3, fine] == 0) and np.all(outs[0][:3, 3] == 0)
    assert np.isfinite(outs[0][:3, fine]).all() and np.isnan(outs[0][3:]).all() and np.isnan(outs[0][:, 29]).all()


# -- the rule itself ------------------------------------------------------------------------------------------------
def test_quantized_values_are_within_half_a_step():
    rows = normal(1, 50, 300) * np.logspace(-20, 20, 50, dtype=np.float32)[:, None]
    whole, scales = int8.quantize(rows)
    assert whole.min() == -127 or whole.max() == 127
    assert np.abs(whole.astype(int)).max(axis=1).tolist() == [127] * 50
    assert np.all(np.abs(whole * scales[:, None] - rows) <= scales[:, None] * 0.5001)


def test_ties_go_to_even():
    whole, _ = int8.quantize(np.array([[127, 0.5, 1.5, 2.5, -0.5, -1.5]], np.float32))
    assert whole[0].tolist() == [127, 0, 2, 2, 0, -2]


def test_an_outlier_leaves_its_span_its_digits():
    weight, x = normal(1, 40, 300), normal(2, 50, 300)
    x[:, 77] *= 30
    weight[:, 77] /= 30
    exact, ways = x @ weight.T, (grouped.hold_mixed(weight), grouped.hold(in_int8(weight)))
    mixed, plain = (np.linalg.norm(grouped.product(x, way) - exact) / np.linalg.norm(exact) for way in ways)
    assert mixed < 0.75 * plain


def test_mixed_weights_are_given_back_and_a_short_span_stays():
    weight = normal(1, 8, 100)
    np.testing.assert_allclose(grouped.hold_mixed(weight).rows(np.arange(8)), weight, atol=0.03)
    assert np.array_equal(grouped.mixed_spans(weight, is_query=False)[:, 96:], weight[:, 96:])
