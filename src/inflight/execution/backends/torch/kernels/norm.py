"""Norms of rows as kernels. A norm has a program for each row (or part of one), which keeps it in registers: it is read
once, and its sum depends on no other row. Products and sums are not fused."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from inflight.execution.backends.torch.device_pass import DevicePass
from inflight.execution.backends.torch.kernels.elementwise import COLUMNS, grid_of, piece


def rms_norm(on: DevicePass, x: Tensor, weight: Tensor, eps: float, out: Tensor) -> None:
    rows, width = x.shape
    block = triton.next_power_of_2(width)
    _rms_norm[(rows,)](x, weight, out, eps, 1.0, width, False, block, num_warps=warps_of(block), enable_fp_fusion=False)


def layer_norm(on: DevicePass, x: Tensor, weight: Tensor, bias: Tensor | None, eps: float, out: Tensor) -> None:
    rows, width = x.shape
    block = triton.next_power_of_2(width)
    _layer_norm[(rows,)](x, weight, bias, out, eps, width, block, num_warps=warps_of(block), enable_fp_fusion=False)


def layer_norm_sum(on: DevicePass, x: Tensor, weight: Tensor, bias: Tensor | None, eps: float, out: Tensor) -> None:
    layer_norm(on, x, weight, bias, eps, x)
    out.copy_(x)


def add(on: DevicePass, x: Tensor, norm: Tensor | None, eps: float, factor: float, out: Tensor) -> None:
    if norm is None:
        rows, width = x.shape
        _add[grid_of(rows, width)](x, out, factor, width, COLUMNS, enable_fp_fusion=False)
    else:
        width = len(norm)
        block = triton.next_power_of_2(width)
        parts = x.shape[0] * (x.shape[1] // width)
        _rms_norm[(parts,)](
            x, norm, out, eps, factor, width, True, block, num_warps=warps_of(block), enable_fp_fusion=False
        )


def warps_of(block: int) -> int:
    """Return the warps of a program over so many numbers: 16 a thread, up to 16 warps."""
    return max(1, min(block // 512, 16))


@triton.jit
def _rms_norm(x, weight, out, eps, factor, WIDTH: tl.constexpr, ADDS: tl.constexpr, BLOCK: tl.constexpr):
    """out = the norm of x; ADDS: out += factor · the norm. Rows float32[WIDTH]; out act, or float32 if it is added."""
    columns = tl.arange(0, BLOCK)
    inside = columns < WIDTH
    at = tl.program_id(0).to(tl.int64) * WIDTH + columns
    row = tl.load(x + at, mask=inside, other=0.0)
    root = tl.sqrt_rn(tl.div_rn(tl.sum(row * row, axis=0), WIDTH * 1.0) + eps)
    normed = row * tl.div_rn(1.0, root) * tl.load(weight + columns, mask=inside, other=0.0)
    if ADDS:
        normed = tl.load(out + at, mask=inside) + factor * normed
    tl.store(out + at, normed.to(out.dtype.element_ty), mask=inside)


@triton.jit
def _layer_norm(x, weight, bias, out, eps, WIDTH: tl.constexpr, BLOCK: tl.constexpr):
    columns = tl.arange(0, BLOCK)
    inside = columns < WIDTH
    at = tl.program_id(0).to(tl.int64) * WIDTH + columns
    row = tl.load(x + at, mask=inside, other=0.0)
    # The mean of large numbers is off by a few of their last bits: what is left of it is taken off, too.
    centred = tl.where(inside, row - tl.div_rn(tl.sum(row, axis=0), WIDTH * 1.0), 0.0)
    centred = tl.where(inside, centred - tl.div_rn(tl.sum(centred, axis=0), WIDTH * 1.0), 0.0)
    root = tl.sqrt_rn(tl.div_rn(tl.sum(centred * centred, axis=0), WIDTH * 1.0) + eps)
    normed = centred * tl.div_rn(1.0, root) * tl.load(weight + columns, mask=inside, other=0.0)
    if bias is not None:
        normed += tl.load(bias + columns, mask=inside, other=0.0)
    tl.store(out + at, normed.to(out.dtype.element_ty), mask=inside)


@triton.jit
def _add(x, out, factor, width, BLOCK: tl.constexpr):
    row, columns, inside = piece(width, BLOCK)
    at = row * width + columns
    tl.store(out + at, tl.load(out + at, mask=inside) + factor * tl.load(x + at, mask=inside), mask=inside)
