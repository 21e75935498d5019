"""A product of each head's part of a row with a matrix of its own, as a kernel."""

from __future__ import annotations

from torch import Tensor

from inflight.execution.backends.torch.device_pass import DevicePass
from inflight.execution.backends.torch.kernels.launching import Ending, Shape, launch, operands
from inflight.execution.backends.torch.kernels.tiles import tiles_for
from inflight.execution.backends.torch.weights import DeviceHeads


def by_head(on: DevicePass, x: Tensor, weight: DeviceHeads, out: Tensor) -> None:
    """x act[T, H·K] → out act[T, H·M], M ≥ N: the first N numbers of each head are x of the head · Wᵀ of the head."""
    tiles = tiles_for(weight.matrix, x.dtype, len(x), on.invariant)
    width = out.shape[1] // weight.count
    shape = Shape(len(x), weight.rows, weight.columns, x.shape[1], out.shape[1], width, weight.count)
    launch(operands(x, weight.matrix, weight.columns), out, shape, tiles, Ending(), weight.matrix)
