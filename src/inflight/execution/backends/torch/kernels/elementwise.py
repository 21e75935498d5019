"""Operations on numbers one by one: Triton kernels, and PyTorch's own where that is one launch, too.

Products and sums are not fused: numbers that are only moved and added have the bits of the definition.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from inflight.execution.backends.protocol import Nonlinearity
from inflight.execution.backends.torch.device_pass import DevicePass
from inflight.execution.backends.torch.kernels.functions import activated, times_sigmoid

COLUMNS = 1024  # of a row in one program, where columns do not know of each other


def clear(on: DevicePass, out: Tensor) -> None:
    out.zero_()


def to_act(on: DevicePass, x: Tensor, out: Tensor) -> None:
    out.copy_(x)


def scale(on: DevicePass, x: Tensor, factor: float) -> None:
    x.mul_(factor)


def soft_cap(on: DevicePass, x: Tensor, cap: float) -> None:
    x.div_(cap).tanh_().mul_(cap)


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
    _activate[grid_of(rows, width)](
        x, parameters, factors, out, stride, width, activation, COLUMNS, enable_fp_fusion=False
    )


def add_gated(on: DevicePass, x: Tensor, gate: Tensor, out: Tensor) -> None:
    rows, width = x.shape
    _add_gated[grid_of(rows, width)](x, gate, out, width, COLUMNS, enable_fp_fusion=False)


def gate(on: DevicePass, gate: Tensor, x: Tensor) -> None:
    rows, width = x.shape
    _gate[grid_of(rows, width)](gate, x, width, COLUMNS, enable_fp_fusion=False)


def grid_of(rows: int, width: int) -> tuple[int, int]:
    """Return a grid over rows, and pieces of each."""
    return rows, triton.cdiv(width, COLUMNS)


@triton.jit
def piece(width, BLOCK: tl.constexpr):
    """Return a program's row, its columns, and which of these exist, in a grid over rows and pieces of them."""
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    return tl.program_id(0).to(tl.int64), columns, columns < width


@triton.jit
def _activate(x, parameters, by, out, stride, width, ACTIVATION: tl.constexpr, BLOCK: tl.constexpr):
    row, columns, inside = piece(width, BLOCK)
    above, below = 0.0, 0.0
    if parameters is not None:
        above, below = tl.load(parameters), tl.load(parameters + 1)
    found = activated(tl.load(x + row * width + columns, mask=inside, other=0.0), ACTIVATION, above, below)
    if by is not None:
        found *= tl.load(by + row * stride + columns, mask=inside, other=0.0)
    tl.store(out + row * width + columns, found.to(out.dtype.element_ty), mask=inside)


@triton.jit
def _add_gated(x, gate, out, width, BLOCK: tl.constexpr):
    row, columns, inside = piece(width, BLOCK)
    at = row * width + columns
    gated = times_sigmoid(tl.load(x + at, mask=inside, other=0.0), tl.load(gate + row))
    tl.store(out + at, tl.load(out + at, mask=inside) + gated, mask=inside)


@triton.jit
def _gate(gate, x, width, BLOCK: tl.constexpr):
    row, columns, inside = piece(width, BLOCK)
    at = row * width + columns
    values = tl.load(x + at, mask=inside, other=0.0).to(tl.float32)
    gated = values * tl.div_rn(1.0, 1.0 + tl.exp(-tl.load(gate + at, mask=inside, other=0.0)))
    tl.store(x + at, gated.to(x.dtype.element_ty), mask=inside)
