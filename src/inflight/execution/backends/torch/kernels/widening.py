"""Matrices in codes of groups, widened to `act` as a whole: for products of many rows, which cuBLAS multiplies.

Where rows are few a product reads codes by itself (`gemm`), at a quarter or half of the bytes; where they are many it
is bound by tensor cores, and writing a matrix once costs little beside it. The memory is given back with the product.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from inflight.execution.backends.torch.kernels.codes import coding_of, halves_of, widened
from inflight.execution.backends.torch.weights import GroupedMatrix

_BYTES = 1024  # of one output's codes, by one program


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
