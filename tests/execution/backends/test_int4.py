"""The rule of int4 in numpy: what quantizing does to a number, how scales are held, and what a product over them is."""

from __future__ import annotations

import numpy as np
import pytest

from inflight.execution.backends import grouped, int4, int8
from inflight.execution.backends.matrices import (
    LINEAR_CODES,
    Int4Matrix,
    Int8Matrix,
    ReorderedMatrix,
    alike,
    by_output,
    dequantized,
    in_int8,
)

from .material import normal

MXFP4 = np.array([0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12], np.int8)


def matrix(rows: int, columns: int, group: int, offsets: bool = False, meanings: object = LINEAR_CODES) -> Int4Matrix:
    codes = np.random.default_rng(rows).integers(0, 16, (rows, columns), np.uint8)
    groups = -(-columns // group)
    scales = normal(1, rows, groups) * 2**-7
    return Int4Matrix(codes, scales, normal(2, rows, groups) if offsets else None, group, np.asarray(meanings))


def out_of_order(matrix: Int4Matrix, seed: int = 5) -> ReorderedMatrix:
    """The same codes, of inputs in another order."""
    return ReorderedMatrix(matrix, np.random.default_rng(seed).permutation(matrix.shape[1]).astype(np.int32))


def rounded(x: np.ndarray) -> np.ndarray:
    """Return activations as products round them."""
    whole, scales = int8.quantize_groups(x, int8.BLOCK)
    return np.asarray(whole * np.repeat(scales, int8.BLOCK, axis=1)[:, : x.shape[1]], np.float32)


@pytest.mark.parametrize("group", int4.GROUP_SIZES)
def test_a_quantized_matrix_errs_as_little_as_four_bits_allow(group: int) -> None:
    rows = normal(1, 64, 512)
    found = int4.quantize(rows, group)
    error = np.sqrt(np.square(found.dequantized() - rows).mean())
    assert error < {32: 0.072, 64: 0.083, 128: 0.095}[group], "of normal weights, whose deviation is 1"
    assert found.codes.max() <= 15 and found.scales.shape == (64, 512 // group)


def test_the_search_beats_rounding_to_the_range() -> None:
    rows = normal(3, 200, 32)
    least = rows.min(axis=1, keepdims=True)
    scale = (rows.max(axis=1, keepdims=True) - least) / 15
    plain = np.rint((rows - least) / scale) * scale + least
    better = int4.quantize(rows, 32).dequantized()
    assert np.square(better - rows).sum() < 0.9 * np.square(plain - rows).sum()
    assert np.all(np.square(better - rows).sum(axis=1) <= np.square(plain - rows).sum(axis=1) * 1.0001)


def test_what_four_bits_hold_is_held() -> None:
    """Sixteen numbers that are evenly spaced come back, wherever they begin, as far as float32 goes; a short group,
    too."""
    rows = np.random.default_rng(4).integers(0, 16, (50, 90)).astype(np.float32)
    rows[:, [0, 32, 64]], rows[:, [1, 33, 65]] = 0, 15
    rows += np.linspace(-20, 5, 50, dtype=np.float32)[:, None]
    rows *= np.logspace(-20, 20, 50, dtype=np.float32)[:, None]
    largest = np.abs(rows).max(axis=1, keepdims=True)
    np.testing.assert_allclose(int4.quantize(rows, 32).dequantized() / largest, rows / largest, atol=1e-6)


def test_an_outlier_to_one_side_takes_no_codes_of_the_other() -> None:
    rows = np.abs(normal(6, 64, 32))
    error = int4.quantize(rows, 32).dequantized() - rows
    assert np.sqrt(np.square(error).mean()) < 0.045, "half of what the same range to both sides would leave"


def test_groups_that_cannot_be_scaled() -> None:
    rows = normal(5, 6, 80)
    rows[0, :32], rows[1, 40], rows[2, 79], rows[3], rows[4], rows[5, :2] = 0, np.nan, np.inf, 1e-38, 0.5, [3e38, -3e38]
    found = int4.quantize(rows, 32)
    assert found.scales[0, 0] == 0 and found.scales[3].tolist() == [0, 0, 0]
    assert np.isnan(found.scales[1, 1]) and np.isnan(found.scales[2, 2]) and np.isnan(found.scales[5, 0])
    np.testing.assert_array_equal(found.dequantized()[4], rows[4])  # all alike: an offset alone
    held = grouped.hold(found)
    assert np.isnan(held.scales.factors[[1, 2, 5]]).all() and held.scales.factors[3] == 0
    assert np.isfinite(held.scales.factors[0]) and not held.scales.scales[[1, 2, 3, 5]].any()


def test_scales_of_float16_are_held_exactly_and_others_nearly() -> None:
    exact = matrix(40, 256, 32, offsets=True)
    for name in ("scales", "offsets"):
        array = getattr(exact, name)
        array[...] = array.astype(np.float16)
    np.testing.assert_array_equal(grouped.hold(exact).rows(np.arange(40)), exact.dequantized())
    wide = matrix(40, 256, 32)
    wide.scales[...] *= np.float32(2.0) ** np.random.default_rng(0).integers(-12, 12, wide.scales.shape)
    np.testing.assert_allclose(grouped.hold(wide).rows(np.arange(40)), wide.dequantized(), rtol=2**-11)


@pytest.mark.parametrize("meanings", [LINEAR_CODES, MXFP4, 8 * np.arange(-16, 16, 2) + 1])
@pytest.mark.parametrize("offsets", [False, True])
@pytest.mark.parametrize("group", [16, 32, 64, 128])
def test_a_product_is_that_of_the_numbers_that_are_meant(group: int, offsets: bool, meanings: np.ndarray) -> None:
    weight = matrix(30, 200, group, offsets, meanings.astype(np.int8))
    x = rounded(normal(7, 5, 200))
    want = x.astype(np.float64) @ weight.dequantized().astype(np.float64).T
    found = grouped.product(x, grouped.hold(weight))
    np.testing.assert_allclose(found, want, rtol=0, atol=2**-11 * np.abs(want).max())


def test_two_of_one_kind_stay_and_two_kinds_become_the_wider() -> None:
    plain, bytes_ = normal(1, 8, 64), in_int8(normal(2, 8, 64))
    linear, offset, other = matrix(8, 64, 32), matrix(8, 64, 32, offsets=True), matrix(8, 64, 32, meanings=MXFP4)
    for one, hold in ((plain, "int4"), (linear, "act")):
        assert all(found is one for found in alike(one, one, hold))
    left, right = alike(linear, offset, "act")
    assert isinstance(left, Int4Matrix) and left.offsets is not None and not left.offsets.any() and right is offset
    for pair in ((linear, other), (linear, bytes_), (offset, bytes_), (bytes_, by_output(bytes_.values, normal(1, 8)))):
        made = alike(*pair, "act")
        assert all(isinstance(one, Int8Matrix) for one in made)
        for one, source in zip(made, pair, strict=True):
            np.testing.assert_array_equal(dequantized(one), dequantized(source))
    for one, source in zip(alike(matrix(8, 64, 64), linear, "act"), (matrix(8, 64, 64), linear), strict=True):
        assert isinstance(one, Int4Matrix) and one.group == 32
        np.testing.assert_array_equal(dequantized(one), dequantized(source))
    made = alike(plain, linear, "act")
    assert made[0].dtype == np.float32 and np.array_equal(made[1], linear.dequantized())
    assert all(isinstance(one, Int8Matrix) for one in alike(plain, linear, "int4"))


@pytest.mark.parametrize("offsets", [False, True])
def test_a_product_over_inputs_out_of_order_is_that_of_the_matrix(offsets: bool) -> None:
    weight = out_of_order(matrix(9, 75, 32, offsets))
    x = normal(4, 6, 75)
    in_order = rounded(x[:, weight.order])
    got = grouped.product(x, grouped.hold(weight))
    want = in_order.astype(np.float64) @ weight.matrix.dequantized().T.astype(np.float64)
    np.testing.assert_allclose(got, want, atol=2e-3 * np.abs(want).max())  # scales are held in 16 bits
    np.testing.assert_array_equal(got, grouped.product(x[:, weight.order], grouped.hold(weight.matrix)))


def test_pairs_out_of_order_stay_in_codes_where_they_have_one_order() -> None:
    gate, up = matrix(5, 64, 32), matrix(6, 64, 32, offsets=True)
    one, other = alike(out_of_order(gate), out_of_order(up), "act")
    assert isinstance(one, ReorderedMatrix) and isinstance(other, ReorderedMatrix)
    assert one.matrix.offsets is not None and np.array_equal(dequantized(one), dequantized(out_of_order(gate)))
    for second in (up, out_of_order(up, 6)):
        pair = alike(out_of_order(gate), second, "act")
        assert all(isinstance(held, Int8Matrix) for held in pair)
        assert np.array_equal(dequantized(pair[0]), in_int8(out_of_order(gate).dequantized()).dequantized())
