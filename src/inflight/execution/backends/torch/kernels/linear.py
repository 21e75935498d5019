"""Products with packed weights, as kernels: x · Wᵀ.

invariant, everywhere: a row has the same bits among any other rows (`tiles`); else the products of many rows are
cuBLAS's, with weights that are plain or are widened to that. Where rows are few a product reads codes by itself
(`gemm`), at a quarter or half of the bytes; where they are many it is bound by tensor cores, and writing a matrix once
costs little beside it. The memory is given back with the product.
"""

from __future__ import annotations

from typing import TypeGuard

import torch
import triton
import triton.language as tl
from torch import Tensor

from inflight.execution.backends.protocol import Nonlinearity
from inflight.execution.backends.torch.device_pass import DevicePass
from inflight.execution.backends.torch.kernels.adapters import add_low_rank
from inflight.execution.backends.torch.kernels.codes import coding_of, halves_of, widened
from inflight.execution.backends.torch.kernels.elementwise import activate
from inflight.execution.backends.torch.kernels.gemm import gate_kernel
from inflight.execution.backends.torch.kernels.launching import Ending, Shape, launch, operands
from inflight.execution.backends.torch.kernels.tiles import OURS, kind_of, parts_for, tiles_for
from inflight.execution.backends.torch.weights import (
    DeviceGateUp,
    DeviceLinear,
    GroupedMatrix,
    Int8Matrix,
    PackedMatrix,
    PlainMatrix,
    outputs_of,
)

_GATED = 1024  # outputs of one program that gates
_BYTES = 1024  # of one output's codes, by one program that widens


def linear(on: DevicePass, x: Tensor, weight: DeviceLinear, out: Tensor) -> None:
    """x act[S, K] → out float32[S, N] = x · Wᵀ + bias."""
    _of_parts(on, x, weight, out, False)
    _add_adapters(on, x, weight, out)


def linear_residual(on: DevicePass, x: Tensor, weight: DeviceLinear, out: Tensor) -> None:
    """x act[S, K] → out float32[S, N] plus x · Wᵀ + bias."""
    _of_parts(on, x, weight, out, True)
    _add_adapters(on, x, weight, out)


def linear_act(on: DevicePass, x: Tensor, weight: DeviceLinear, activation: Nonlinearity, out: Tensor) -> None:
    """x act[S, K] → out act[S, N] = activation(x · Wᵀ + bias)."""
    sums = torch.empty(out.shape, dtype=torch.float32, device=out.device)
    linear(on, x, weight, sums)
    activate(on, sums, activation, out)


def gate_up(on: DevicePass, x: Tensor, weight: DeviceGateUp, out: Tensor, activation: Nonlinearity = "silu") -> None:
    """x act[S, E] → out act[S, F] = activation(x · gateᵀ) · (x · upᵀ)."""
    assert activation in ("silu", "gelu", "gelu_tanh"), activation
    adapted, (matrix, *others) = on.adapted(weight), weight.both.parts
    if adapted is None and not others and not _is_cublas(matrix, x, on.invariant):
        product(x, matrix, out, Ending(weight.both.bias, activation), 2 * weight.rows, on.invariant)
        return
    both = torch.empty(len(x), 2 * weight.rows, dtype=torch.float32, device=x.device)
    _of_parts(on, x, weight.both, both, False)
    _add_adapters(on, x, weight, both)
    gate_both(both, weight, activation, out)


def gate_both(both: Tensor, weight: DeviceGateUp, activation: Nonlinearity, out: Tensor) -> None:
    """both float32[S, 2 · F], the sums of `weight` → out act[S, F], with the bits that gates and ups have where they
    meet in the product's own program."""
    (matrix, *others) = weight.both.parts
    if len(both):
        grid = (len(both), triton.cdiv(weight.rows, _GATED))
        is_exact = not others and isinstance(matrix, Int8Matrix)  # products are not fused with sums there, either
        gate_kernel[grid](both, out, weight.rows, GATING=activation, BLOCK=_GATED, enable_fp_fusion=not is_exact)


def product(x: Tensor, matrix: PackedMatrix, out: Tensor, ending: Ending, outputs: int, invariant: bool) -> None:
    """x act[S, K] by one matrix → out, a view of some of its columns."""
    rows, columns = x.shape
    tiles = tiles_for(matrix, x.dtype, rows, invariant)
    parts = parts_for(matrix, tiles, rows, outputs, columns, invariant)
    shape = Shape(rows, outputs, columns, columns, out.stride(0))
    launch(operands(x, matrix, columns), out, shape, tiles, ending, matrix, parts=parts)


def _add_adapters(on: DevicePass, x: Tensor, weight: DeviceLinear | DeviceGateUp, sums: Tensor) -> None:
    """Add to the sums float32[S, N] of x what each row's adapter makes of it."""
    if (adapted := on.adapted(weight)) is not None:
        add_low_rank(x, *adapted, sums)


def _of_parts(on: DevicePass, x: Tensor, weight: DeviceLinear, out: Tensor, add: bool) -> None:
    first, invariant = 0, on.invariant
    for part in weight.parts:
        past = weight.rows if len(weight.parts) == 1 else first + outputs_of(part)
        bias, into = None if weight.bias is None else weight.bias[first:past], out[:, first:past]
        if _is_cublas(part, x, invariant):
            values = widen(part, x.shape[1], x.dtype) if isinstance(part, GroupedMatrix) else part.values
            _multiply(x, values, into, add)
            if bias is not None:
                into += bias
        else:
            product(x, part, into, Ending(bias, add=add), past - first, invariant)
        first = past


def _multiply(x: Tensor, values: Tensor, out: Tensor, add: bool) -> None:
    """x act[S, K] by values act[N, K] → out float32[S, N], to what is there or in its place, with float32 sums."""
    if not x.is_cuda:  # PyTorch has such products on GPUs alone
        found = x.float() @ values.float().T
        out.copy_(out + found if add else found)
    elif add:
        torch.addmm(out, x, values.T, out_dtype=torch.float32, out=out)
    else:
        torch.mm(x, values.T, out_dtype=torch.float32, out=out)


def _is_cublas(matrix: PackedMatrix, x: Tensor, invariant: bool) -> TypeGuard[PlainMatrix | GroupedMatrix]:
    """Return whether cuBLAS computes this product: of a matrix in `act`, or one that is widened to it."""
    if invariant or x.dtype == torch.float32 or not isinstance(matrix, PlainMatrix | GroupedMatrix):
        return False
    return len(x) > OURS[kind_of(matrix, x.dtype)]


def widen(matrix: GroupedMatrix, columns: int, act: torch.dtype) -> Tensor:
    """Return the matrix's numbers, rounded to act[N, columns]."""
    outputs, taken = matrix.codes.shape
    out = torch.empty(outputs, columns, dtype=act, device=matrix.codes.device)
    widen_kernel[outputs, triton.cdiv(taken, _BYTES)](
        matrix.codes,
        matrix.scales,
        matrix.offsets,
        matrix.permutation,
        matrix.meanings,
        out,
        columns,
        taken,
        GROUP=matrix.group,
        CODING=coding_of(matrix),
        BLOCK=_BYTES,
        enable_fp_fusion=False,  # rounded as the reference is
    )
    return out


@triton.jit
def widen_kernel(
    codes,  # uint8 or int8 [N, taken]
    scales,  # float32[N, groups]
    offsets,  # the same, or None
    permutation,  # int32[columns] or None
    meanings,  # act[16] or None
    out,  # act[N, columns]
    columns,
    taken,
    GROUP: tl.constexpr,
    CODING: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Program (output, run of bytes)."""
    HALVES: tl.constexpr = halves_of(CODING)
    BYTES: tl.constexpr = GROUP // HALVES
    output, byte = tl.program_id(0).to(tl.int64), tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    real = byte < taken
    found = tl.load(codes + output * taken + byte, mask=real, other=0)
    group = output * (taken // BYTES) + byte // BYTES
    scale = tl.load(scales + group, mask=real, other=0.0)
    offset = scale
    if offsets is not None:
        offset = tl.load(offsets + group, mask=real, other=0.0)
    for half in tl.static_range(HALVES):
        value = widened(found, meanings, CODING, half == 1, out.dtype.element_ty).to(tl.float32) * scale
        if offsets is not None:
            value += offset
        column = byte // BYTES * GROUP + half * BYTES + byte % BYTES
        is_column = real & (column < columns)
        if permutation is not None:
            column = tl.load(permutation + column, mask=is_column, other=0)
        tl.store(out + output * columns + column, value.to(out.dtype.element_ty), mask=is_column)
