"""Products in PyTorch's own operations against the definition in numpy."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from inflight.execution.backends import int8
from inflight.execution.backends.bf16 import round_to_bf16
from inflight.execution.backends.torch import eager
from inflight.execution.backends.torch.eager.functions import gated
from inflight.execution.backends.torch.eager.products import product, quantize_fp8, quantize_int8, widened
from inflight.execution.backends.torch.weights import DeviceGateUp, DeviceHeads, DeviceLinear, HeldMatrix
from inflight.execution.ops.formulas import gated as gated_in_numpy

from ..material import normal
from ..test_int4 import MXFP4, matrix, out_of_order
from .matrices import eight_bits, in_fp8, in_groups, in_int4, in_int8, linear, plain, stacked

ROWS, COLUMNS = 24, 80


def result(x: torch.Tensor, weight: DeviceLinear) -> np.ndarray:
    out = torch.full((len(x), weight.rows), torch.nan)
    eager.linear(x, weight, out)
    return out.numpy()


def by_token(x: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Multiply whole numbers, those of a token and of an output with one scale each."""
    (codes, x_scales), (held, scales) = int8.quantize(x), int8.quantize(values)
    sums = codes.astype(np.float64) @ held.astype(np.float64).T
    return np.asarray(sums.astype(np.float32) * x_scales[:, None] * scales)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_plain_products_have_float32_sums(dtype: torch.dtype) -> None:
    x, values, bias = (round_to_bf16(one) for one in (normal(1, 5, COLUMNS), normal(2, ROWS, COLUMNS), normal(3, ROWS)))
    found = result(torch.from_numpy(x).to(dtype), linear([plain(values, dtype)], COLUMNS, bias))
    np.testing.assert_allclose(found, x @ values.T + bias, atol=2e-5)


def test_parts_are_stacked_and_a_residual_is_added_to() -> None:
    x, first, second = normal(1, 3, COLUMNS), normal(2, 7, COLUMNS), normal(3, 9, COLUMNS)
    weight = linear([plain(first, torch.float32), in_int8(second)], COLUMNS)
    out = torch.ones(3, 16)
    eager.linear_residual(torch.from_numpy(x), weight, out)
    want = np.concatenate([x @ first.T, by_token(x, second)], axis=1) + 1
    np.testing.assert_allclose(out.numpy(), want, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("scale", [1.0, 1e-31, 1e30])
def test_int8_is_the_rule_to_the_last_bit(scale: float) -> None:
    x, values = normal(1, 6, COLUMNS) * np.float32(scale), normal(2, ROWS, COLUMNS)
    x[1] = 0
    x[2, 3], x[3, 4] = np.inf, np.nan
    codes, scales = quantize_int8(torch.from_numpy(x))
    for found, want in zip((codes, scales), int8.quantize(x), strict=True):
        np.testing.assert_array_equal(found.numpy(), want)
    found = product(torch.from_numpy(x), in_int8(values)).numpy()
    np.testing.assert_array_equal(found, by_token(x, values))


def test_fp8_errs_as_little_as_three_bits_of_mantissa_allow() -> None:
    x, values = normal(1, 6, COLUMNS), normal(2, ROWS, COLUMNS)
    x[1], x[2, 3] = 0, np.nan
    codes, scales = quantize_fp8(torch.from_numpy(x))
    meant = codes.float().numpy() * scales.numpy()[:, None]
    sound = [0, 1, 3, 4, 5]
    least = np.abs(x[sound]).max(axis=1, keepdims=True) * 2**-15  # half a step between subnormals, of 448
    assert np.all(np.abs(meant - x)[sound] <= np.maximum(np.abs(x[sound]) * 2**-4, least))
    assert np.isnan(meant[2]).all() and codes[4].float().abs().max() == 448
    found = product(torch.from_numpy(x), in_fp8(values)).numpy()[sound]
    assert np.abs(found - x[sound] @ values.T).max() < 0.08 * COLUMNS**0.5


@pytest.mark.parametrize("group", [16, 32, 64, 128])
@pytest.mark.parametrize("kind", ["symmetric", "offsets", "mxfp4", "out of order"])
def test_four_bits_are_widened_to_what_they_mean(group: int, kind: str) -> None:
    """Take columns that fill their last group by half."""
    columns = 2 * group + group // 2
    source = matrix(ROWS, columns, group, kind == "offsets", MXFP4 if kind == "mxfp4" else np.arange(-8, 8))
    held = out_of_order(source) if kind == "out of order" else source
    found = widened(in_int4(held), columns, torch.float32)
    np.testing.assert_allclose(found.numpy(), held.dequantized(), rtol=1e-5, atol=1e-6)
    x = normal(4, 3, columns)
    np.testing.assert_allclose(product(torch.from_numpy(x), in_int4(held)), x @ held.dequantized().T, atol=1e-3)


@pytest.mark.parametrize("group", [16, 32, 64, 128])
@pytest.mark.parametrize("offsets", [False, True])
def test_groups_of_eight_bits_are_widened_to_what_they_mean(group: int, offsets: bool) -> None:
    columns = 2 * group + group // 2
    source = eight_bits(ROWS, columns, group, offsets)
    found = widened(in_groups(source), columns, torch.float32)
    np.testing.assert_allclose(found.numpy(), source.dequantized(), rtol=1e-5, atol=1e-6)
    x = normal(4, 3, columns)
    np.testing.assert_allclose(product(torch.from_numpy(x), in_groups(source)), x @ source.dequantized().T, atol=1e-2)


@pytest.mark.parametrize("activation", ["silu", "gelu_tanh", "clamped_swiglu"])
def test_gates_are_the_definition(activation: str) -> None:
    gate, up = 6 * normal(1, 4, 10), 6 * normal(2, 4, 10)
    found = gated(torch.from_numpy(np.concatenate([gate, up], axis=1)), activation)
    np.testing.assert_allclose(
        found, gated_in_numpy(np.concatenate([gate, up], axis=1), activation), rtol=1e-5, atol=1e-5
    )


def test_gate_and_up_are_one_product_that_is_rounded_once() -> None:
    x, gate, up = normal(1, 3, COLUMNS), normal(2, 10, COLUMNS), normal(3, 10, COLUMNS)
    x, gate, up = round_to_bf16(x), round_to_bf16(gate), round_to_bf16(up)
    weight = DeviceGateUp(linear([plain(np.concatenate([gate, up]), torch.bfloat16)], COLUMNS))
    out = torch.empty(3, 10, dtype=torch.bfloat16)
    eager.gate_up(torch.from_numpy(x).bfloat16(), weight, "silu", out)
    want = gated_in_numpy(np.concatenate([x @ gate.T, x @ up.T], axis=1), "silu")
    np.testing.assert_allclose(out.float(), want, rtol=2**-8, atol=1e-4)


@pytest.mark.parametrize("hold", ["plain", "int8", "int8 in groups", "int4"])
def test_each_head_has_its_matrix_and_writes_no_more_than_its_numbers(hold: str) -> None:
    heads, columns, rows = 3, 32, 5
    values = [normal(head, rows, columns) for head in range(heads)]
    sources = [matrix(rows + head, columns, 32) for head in range(heads)]
    packed: list[HeldMatrix] = [plain(one, torch.float32) for one in values]
    if hold == "int8":
        packed = [in_int8(one) for one in values]
    if hold == "int8 in groups":
        packed = [in_groups(eight_bits(rows, columns, 16, seed=head)) for head in range(heads)]
    if hold == "int4":
        packed = [in_int4(matrix(rows, columns, 32)) for _ in sources]
    weight = DeviceHeads(stacked(packed), heads, rows, columns, 0)
    x, out = torch.from_numpy(normal(9, 4, heads * columns)), torch.full((4, heads * (rows + 2)), 7.0)
    eager.by_head(x, weight, out)
    for head in range(heads):
        want = product(x[:, head * columns : (head + 1) * columns], packed[head])
        found = out.view(4, heads, -1)[:, head]
        assert torch.equal(found[:, :rows], want) and (found[:, rows:] == 7).all()
