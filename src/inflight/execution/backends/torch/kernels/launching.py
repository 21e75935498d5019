"""Launches a product: the arguments of `gemm`'s kernels for a matrix, x, and where things lie.

For weights in 8 bits x is quantized, each row with a scale of its own, by the rules of `backends.int8` and
`backends.fp8`.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from inflight.execution.backends.protocol import Gating, Nonlinearity
from inflight.execution.backends.torch.kernels.codes import coding_of
from inflight.execution.backends.torch.kernels.functions import nearest, quantized
from inflight.execution.backends.torch.kernels.gemm import finish, multiply
from inflight.execution.backends.torch.kernels.tiles import WHOLE, Parts, Tiles
from inflight.execution.backends.torch.weights import Fp8Matrix, GroupedMatrix, Int8Matrix, PackedMatrix

_FINISHED_ROWS, _FINISHED_OUTPUTS = 4, 128  # by one program
_WIDE = 8192  # columns from which a row that is quantized is worth more warps


class Operands(NamedTuple):
    """x as it meets the matrix, and the matrix, or a stack of them: the kernel's first arguments."""

    x: Tensor
    x_scales: Tensor | None
    weight: Tensor
    scales: Tensor | None = None
    offsets: Tensor | None = None
    permutation: Tensor | None = None
    meanings: Tensor | None = None


class SortedRows(NamedTuple):
    """Pairs of a token and one of its experts, in tiles that have one expert each."""

    rows: Tensor  # int32[tiles · rows of a tile]: pairs from 1; 0 is no pair
    experts: Tensor  # int32[tiles]: from 1; 0 is none


class Shape(NamedTuple):
    """rows: of x, or places of sorted rows. Strides: of rows, and of out's heads, whose count is `heads` if there are.
    x_share: pairs that have one row of x."""

    rows: int
    outputs: int
    columns: int
    x_stride: int
    out_stride: int
    head_stride: int = 0
    heads: int = 0
    x_share: int = 1


class Ending(NamedTuple):
    """gating: a name, where outputs are gates, then as many ups. add: to what is in out."""

    bias: Tensor | None = None
    gating: Gating | Nonlinearity | None = None
    add: bool = False


def operands(x: Tensor, matrix: PackedMatrix, columns: int) -> Operands:
    """x act[S, …], whose parts of `columns` numbers are quantized each by itself."""
    if isinstance(matrix, Int8Matrix | Fp8Matrix):
        kind = torch.int8 if isinstance(matrix, Int8Matrix) else torch.float8_e4m3fn
        codes, x_scales = quantize_rows(x.view(-1, columns), kind)
        return Operands(codes, x_scales, matrix.codes, matrix.scales)
    if isinstance(matrix, GroupedMatrix):
        return Operands(x, None, matrix.codes, matrix.scales, matrix.offsets, matrix.permutation, matrix.meanings)
    return Operands(x, None, matrix.values)


def launch(
    of: Operands,
    out: Tensor,
    shape: Shape,
    tiles: Tiles,
    ending: Ending,
    matrix: PackedMatrix,
    sorted_rows: SortedRows | None = None,
    parts: Parts = WHOLE,
) -> None:
    """x · Wᵀ → out. matrix: what the operands are of."""
    if not shape.rows:
        return
    count = triton.cdiv(shape.rows, tiles.rows) * triton.cdiv(shape.outputs, tiles.outputs)
    partial = None
    if parts.separate:
        kind = torch.int32 if of.x.dtype == torch.int8 else torch.float32
        partial = torch.empty(parts.number, shape.rows, shape.outputs, dtype=kind, device=out.device)
    ends = {"GATING": ending.gating or "", "ADD": ending.add, "PARTS": parts.number}
    options = {"enable_fp_fusion": of.x.dtype != torch.int8}  # what is exact is rounded where the definition rounds
    multiply[count, max(shape.heads, 1), parts.number if parts.separate else 1](
        *of,
        ending.bias,
        out,
        None if sorted_rows is None else sorted_rows.rows,
        None if sorted_rows is None else sorted_rows.experts,
        partial,
        *shape[:6],
        shape.x_share,
        HEADS=shape.heads,
        GROUP=matrix.group if isinstance(matrix, GroupedMatrix) else 0,
        CODING=coding_of(matrix) if isinstance(matrix, GroupedMatrix) else "",
        WHOLE=shape.columns % (tiles.inputs * parts.number) == 0,
        BLOCK_M=tiles.rows,
        BLOCK_N=tiles.outputs,
        BLOCK_K=tiles.inputs,
        num_warps=tiles.warps,
        num_stages=tiles.stages,
        **ends,
        **options,
    )
    if partial is not None:
        count = triton.cdiv(shape.rows, _FINISHED_ROWS) * triton.cdiv(shape.outputs, _FINISHED_OUTPUTS)
        finish[(count,)](
            partial, of.x_scales, of.scales if of.x_scales is not None else None, ending.bias, out,
            shape.rows, shape.outputs, shape.out_stride,
            BLOCK_M=_FINISHED_ROWS, BLOCK_N=_FINISHED_OUTPUTS, **ends, **options,
        )  # fmt: skip


def quantize_rows(x: Tensor, kind: torch.dtype) -> tuple[Tensor, Tensor]:
    """Return act[S, K] as int8 or float8_e4m3fn [S, K], and scales float32[S]."""
    rows, columns = x.shape
    codes, scales = torch.empty_like(x, dtype=kind), torch.empty(rows, dtype=torch.float32, device=x.device)
    block = triton.next_power_of_2(columns)
    quantize_kernel[rows,](
        x,
        codes,
        scales,
        columns,
        IS_WHOLE=kind == torch.int8,
        BLOCK=block,
        num_warps=16 if block > _WIDE else 4,
        enable_fp_fusion=False,  # the rule rounds a product before it looks for the nearest whole number
    )
    return codes, scales


@triton.jit
def quantize_kernel(x, codes, scales, columns, IS_WHOLE: tl.constexpr, BLOCK: tl.constexpr):
    row, places = tl.program_id(0).to(tl.int64), tl.arange(0, BLOCK)
    values = tl.load(x + row * columns + places, mask=places < columns, other=0.0).to(tl.float32)
    found, scale = quantized(values[None, :], 127.0 if IS_WHOLE else 448.0)
    found = nearest(found) if IS_WHOLE else tl.minimum(tl.maximum(found, -448.0), 448.0)
    tl.store(codes + row * columns + places[None, :], found.to(codes.dtype.element_ty), mask=places[None, :] < columns)
    tl.store(scales + row + tl.arange(0, 1), scale)
