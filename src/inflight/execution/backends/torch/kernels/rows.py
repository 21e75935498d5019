"""Numbers one by one and row by row, as kernels: norms, activation functions, sums, gates.

Knows how rows are shared out among programs; formulas are in `functions`, tokens are looked up in `embedding`. A norm
has a program for each row (or part of one), which keeps it in registers: it is read once, and its sum depends on no
other row. Products and sums are not fused: numbers that are only moved and added have the bits of the definition.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from inflight.execution.backends.protocol import Nonlinearity
from inflight.execution.backends.torch.device_pass import DevicePass
from inflight.execution.backends.torch.kernels.functions import activated, times_sigmoid

COLUMNS = 1024  # of a row in one program, where columns do not know of each other


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
        _add[_tiles(rows, width)](x, out, factor, width, COLUMNS, enable_fp_fusion=False)
    else:
        width = len(norm)
        block = triton.next_power_of_2(width)
        parts = x.shape[0] * (x.shape[1] // width)
        _rms_norm[(parts,)](
            x, norm, out, eps, factor, width, True, block, num_warps=warps_of(block), enable_fp_fusion=False
        )


def activate(
    on: DevicePass,
    x: Tensor,
    activation: Nonlinearity,
    out: Tensor,
    parameters: Tensor | None = None,
    by: Tensor | None = None,
    first: int = 0,
) -> None:
    rows, width = x.shape
    factors, stride = (None, 0) if by is None else (by[:, first : first + width], by.stride(0))
    _activate[_tiles(rows, width)](
        x, parameters, factors, out, stride, width, activation, COLUMNS, enable_fp_fusion=False
    )


def add_gated(on: DevicePass, x: Tensor, gate: Tensor, out: Tensor) -> None:
    rows, width = x.shape
    _add_gated[_tiles(rows, width)](x, gate, out, width, COLUMNS, enable_fp_fusion=False)


def gate(on: DevicePass, gate: Tensor, x: Tensor) -> None:
    rows, width = x.shape
    _gate[_tiles(rows, width)](gate, x, width, COLUMNS, enable_fp_fusion=False)


def warps_of(block: int) -> int:
    """Return the warps of a program over so many numbers: 16 a thread, up to 16 warps."""
    return max(1, min(block // 512, 16))


def _tiles(rows: int, width: int) -> tuple[int, int]:
    """Return a grid over rows, and pieces of each."""
    return rows, triton.cdiv(width, COLUMNS)


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
def _piece(width, BLOCK: tl.constexpr):
    """Return a program's row, its columns, and which of these exist, in a grid over rows and pieces of them."""
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    return tl.program_id(0).to(tl.int64), columns, columns < width


@triton.jit
def _add(x, out, factor, width, BLOCK: tl.constexpr):
    row, columns, inside = _piece(width, BLOCK)
    at = row * width + columns
    tl.store(out + at, tl.load(out + at, mask=inside) + factor * tl.load(x + at, mask=inside), mask=inside)


@triton.jit
def _activate(x, parameters, by, out, stride, width, ACTIVATION: tl.constexpr, BLOCK: tl.constexpr):
    row, columns, inside = _piece(width, BLOCK)
    above, below = 0.0, 0.0
    if parameters is not None:
        above, below = tl.load(parameters), tl.load(parameters + 1)
    found = activated(tl.load(x + row * width + columns, mask=inside, other=0.0), ACTIVATION, above, below)
    if by is not None:
        found *= tl.load(by + row * stride + columns, mask=inside, other=0.0)
    tl.store(out + row * width + columns, found.to(out.dtype.element_ty), mask=inside)


@triton.jit
def _add_gated(x, gate, out, width, BLOCK: tl.constexpr):
    row, columns, inside = _piece(width, BLOCK)
    at = row * width + columns
    gated = times_sigmoid(tl.load(x + at, mask=inside, other=0.0), tl.load(gate + row))
    tl.store(out + at, tl.load(out + at, mask=inside) + gated, mask=inside)


@triton.jit
def _gate(gate, x, width, BLOCK: tl.constexpr):
    row, columns, inside = _piece(width, BLOCK)
    at = row * width + columns
    values = tl.load(x + at, mask=inside, other=0.0).to(tl.float32)
    gated = values * tl.div_rn(1.0, 1.0 + tl.exp(-tl.load(gate + at, mask=inside, other=0.0)))
    tl.store(x + at, gated.to(x.dtype.element_ty), mask=inside)
