"""Launches a product: the arguments of `gemm`'s kernels for a matrix, x, and where things lie."""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
from torch import Tensor

from inflight.execution.backends.protocol import Gating, Nonlinearity
from inflight.execution.backends.torch.kernels.codes import coding_of
from inflight.execution.backends.torch.kernels.gemm import finish, multiply
from inflight.execution.backends.torch.kernels.quantized_products import quantize_rows
from inflight.execution.backends.torch.kernels.tiles import WHOLE, Parts, Tiles
from inflight.execution.backends.torch.weights import Fp8Matrix, GroupedMatrix, Int8Matrix, PackedMatrix

_FINISHED_ROWS, _FINISHED_OUTPUTS = 4, 128  # by one program


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
