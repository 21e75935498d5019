"""Numbers row by row in PyTorch against the definition in numpy: to a few last bits, and in bf16 to the last."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from inflight.execution.backends import int4, int8
from inflight.execution.backends.torch import eager
from inflight.execution.backends.torch.weights import DeviceTable, HeldMatrix, Int8Matrix
from inflight.execution.ops.formulas import activated, parts_normed, rms_normed, sigmoid, times_sigmoid
from inflight.execution.ops.norm import _layer_normed as layer_normed

from ..material import Array, normal
from .matrices import eight_bits, in_groups, in_int4, plain

SHAPES = [(1, 64), (3, 50), (70, 896), (5, 7), (0, 32)]
BF16 = pytest.mark.parametrize("held", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
CURVE = np.array([0.8, 1.3], np.float32)  # of xielu


def on_device(x: Array) -> Tensor:
    return torch.from_numpy(x.copy())


def garbage(held: torch.dtype, *shape: int) -> Tensor:
    """Make memory that an operation has to write whole."""
    return torch.full(shape, torch.nan, dtype=held)


def close(out: Tensor, want: Array, atol: float = 1e-6) -> None:
    rtol = 2**-8 if out.dtype == torch.bfloat16 else 3e-6
    np.testing.assert_allclose(out.float().numpy(), want, rtol=rtol, atol=atol)


def table_of(matrix: HeldMatrix, rows: int, columns: int, share_scales: Tensor | None = None) -> DeviceTable:
    return DeviceTable(matrix, rows, columns, 0, None, share_scales)


@BF16
@pytest.mark.parametrize(("rows", "width"), SHAPES)
def test_norms(held: torch.dtype, rows: int, width: int) -> None:
    x, weight, bias = 100 + 3 * normal(1, rows, width), normal(2, width), normal(3, width)
    out = garbage(held, rows, width)
    eager.rms_norm(on_device(x), on_device(weight), 1e-5, out)
    close(out, rms_normed(x, weight, 1e-5))
    for shift in (None, bias):
        eager.layer_norm(on_device(x), on_device(weight), None if shift is None else on_device(shift), 1e-5, out)
        close(out, layer_normed(x, weight, shift, 1e-5), atol=2e-5)


@pytest.mark.parametrize(("rows", "width", "parts"), [(1, 64, 1), (9, 72, 3), (9, 35, 5), (3, 50, 50), (0, 8, 2)])
def test_what_is_added_is_normed_in_equal_parts(rows: int, width: int, parts: int) -> None:
    x, weight, before = 3 * normal(1, rows, width), normal(2, width // parts), normal(3, rows, width)
    for norm in (None, weight):
        out = on_device(before)
        eager.add(on_device(x), None if norm is None else on_device(norm), 1e-6, 0.22, out)
        close(out, before + np.float32(0.22) * parts_normed(x, norm, 1e-6))


@BF16
@pytest.mark.parametrize("kind", ["silu", "gelu", "gelu_tanh", "relu", "relu2", "tanh", "xielu"])
def test_activation_functions(held: torch.dtype, kind: str) -> None:
    """To a few last bits, or where nearly nothing is left 10⁻⁶ of the number; times columns of a wider tensor."""
    x = np.concatenate([[0, -1e-3, 1e4, -1e4, -88, -10, 6], 3 * normal(1, 993)]).astype(np.float32).reshape(10, 100)
    factors, out = normal(2, 10, 300), garbage(held, 10, 100)
    for by in (None, factors[:, 150:250]):
        gates = None if by is None else on_device(factors)[:, 150:250]
        eager.activate(on_device(x), kind, on_device(CURVE), gates, out)
        want = activated(x, kind, CURVE)
        close(out, want if by is None else want * by, atol=5e-6)


@BF16
@pytest.mark.parametrize(("rows", "width"), SHAPES)
def test_gates(held: torch.dtype, rows: int, width: int) -> None:
    x, gates, before = 3 * normal(1, rows, width), 3 * normal(2, rows, width), normal(3, rows, width)
    out = on_device(before)
    eager.add_gated(on_device(x), on_device(gates[:, :1]), out)
    close(out, before + times_sigmoid(x, gates[:, :1]))
    out = on_device(x).to(held)
    rounded = out.float().numpy().copy()
    eager.gate(on_device(gates), out)
    close(out, rounded * sigmoid(gates))


@BF16
def test_tokens_are_looked_up_as_they_are_held(held: torch.dtype) -> None:
    values, ids = normal(1, 11, 24), np.array([3, 0, 10, 3], np.int32)
    out = garbage(torch.float32, 4, 24)
    eager.embed(table_of(plain(values, held), 11, 24), on_device(ids), out)
    assert torch.equal(out, on_device(values).to(held).float()[ids])
    eager.embed(table_of(plain(values, held), 11, 24), on_device(ids[:0]), out[:0])


@pytest.mark.parametrize("shares", [1, 3])
def test_tokens_are_looked_up_in_int8(shares: int) -> None:
    codes, scales = int8.quantize(normal(1, 11 * shares, 24 // shares))
    ids, out = np.array([3, 0, 10, 3], np.int32), garbage(torch.float32, 4, 24)
    of_shares = None if shares == 1 else on_device(scales.reshape(11, shares))
    matrix = Int8Matrix(on_device(codes.reshape(11, 24)), on_device(scales[:11]))
    eager.embed(table_of(matrix, 11, 24, of_shares), on_device(ids), out)
    want = (codes * scales[:, None]).astype(np.float32).reshape(11, 24)
    np.testing.assert_array_equal(out.numpy(), want[ids])


@pytest.mark.parametrize("columns", [64, 72])
def test_tokens_are_looked_up_in_int4(columns: int) -> None:
    source = int4.quantize(normal(1, 11, columns), 32)
    bent = replace(source, offsets=normal(2, *source.scales.shape), meanings=np.arange(16, dtype=np.int8) ** 2 // 2)
    ids = np.array([3, 0, 10, 3], np.int32)
    for matrix in (source, replace(source, offsets=source.scales), bent):
        out, want = garbage(torch.float32, 4, columns), matrix.dequantized()
        eager.embed(table_of(in_int4(matrix), 11, columns), on_device(ids), out)
        close(out, want[ids])


@pytest.mark.parametrize("offsets", [False, True])
def test_tokens_are_looked_up_in_int8_by_groups(offsets: bool) -> None:
    source, ids, out = eight_bits(11, 72, 32, offsets), np.array([3, 0, 10, 3], np.int32), garbage(torch.float32, 4, 72)
    eager.embed(table_of(in_groups(source), 11, 72), on_device(ids), out)
    close(out, source.dequantized()[ids])
