"""Short convolutions over the last inputs of a sequence."""

from __future__ import annotations

from inflight.execution.backends.protocol.handles import Activation, Vector
from inflight.execution.program import Program, operation


@operation
def convolve(program: Program, x: Activation, layer: int, weight: Vector, out: Activation) -> None:
    """x float32[T, at least C], of which the first C numbers are the inputs of a depthwise convolution over the
    last K = inputs + 1 tokens (`LayerState`), C its channels → out float32[T, C] = silu of its sums.

    weight float32[K · C], of the oldest input first. Inputs are rounded to `act`; those before a chunk are its
    row's state, or 0 where it begins at position 0. Sums are float32, from the oldest input on. The last inputs are
    left in the state, and in snapshots as they are due."""


@operation
def convolve_gated(
    program: Program, x: Activation, layer: int, weight: Vector, bias: Vector | None, out: Activation
) -> None:
    """x float32[T, 3 · C], the numbers B of all channels, then G, then X → out act[T, C] = G · (sums + bias), where
    the inputs are B · X; else as `convolve`."""
