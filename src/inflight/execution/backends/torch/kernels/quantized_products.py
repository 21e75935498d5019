"""Rows in 8 bits, each with a scale of its own, for products with weights in 8 bits.

The rules are those of `backends.int8` and `backends.fp8`.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from inflight.execution.backends.torch.kernels.functions import nearest, quantized

_WIDE = 8192  # columns from which a row is worth more warps


def quantize_rows(x: Tensor, kind: torch.dtype) -> tuple[Tensor, Tensor]:
    """act[S, K] → int8 or float8_e4m3fn [S, K], and scales float32[S]."""
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
