"""Short convolutions over the last inputs of a sequence."""

from __future__ import annotations

import numpy as np

from inflight.execution.backends.protocol import Array
from inflight.execution.backends.protocol.handles import Activation, Vector
from inflight.execution.ops.formulas import activated
from inflight.execution.ops.numpy_pass import NumpyPass
from inflight.execution.program import operation


@operation()
def convolve(on: NumpyPass, x: Activation, layer: int, weight: Vector, out: Activation) -> None:
    """x float32[T, at least C], of which the first C numbers are the inputs of a depthwise convolution over the
    last K = inputs + 1 tokens (`LayerState`), C its channels → out float32[T, C] = silu of its sums.

    weight float32[K · C], of the oldest input first. Inputs are rounded to `act`; those before a chunk are its
    row's state, or 0 where it begins at position 0. Sums are float32, from the oldest input on. The last inputs are
    left in the state, and in snapshots as they are due."""
    channels = on.recurrent(layer).inputs.shape[2]
    out.write(activated(_convolved(on, x.written[:, :channels], layer, weight), "silu"))


@operation()
def convolve_gated(
    on: NumpyPass, x: Activation, layer: int, weight: Vector, bias: Vector | None, out: Activation
) -> None:
    """x float32[T, 3 · C], the numbers B of all channels, then G, then X → out act[T, C] = G · (sums + bias), where
    the inputs are B · X; else as `convolve`."""
    before, after, inputs = np.split(x.written, 3, axis=1)
    sums = _convolved(on, before * inputs, layer, weight)
    on.store(after * (sums if bias is None else sums + bias), out)


def _convolved(on: NumpyPass, x: Array, layer: int, weight: Array) -> Array:
    """float32[T, C] → float32[T, C], chunk by chunk; the last inputs of each stay in its state."""
    states, taps = on.recurrent(layer).inputs, weight.reshape(-1, x.shape[1])  # taps [K, C]
    inputs, sums = on.act.store(x), np.empty_like(x)
    for chunk in on.state_chunks():
        seen = np.concatenate([chunk.before(states), inputs[chunk.tokens]])
        sums[chunk.tokens] = _sums(on.act.load(seen), taps)
        for done, state in (*chunk.due.items(), (chunk.length, chunk.state)):
            states[state] = seen[done : done + len(taps) - 1]
    return sums


def _sums(inputs: Array, taps: Array) -> Array:
    """y[t, c] = Σ taps[i, c] · inputs[t + i, c], the oldest input first.

    inputs float32[K - 1 + T, C], of which the first K - 1 came before; taps float32[K, C] → float32[T, C].
    """
    count = len(inputs) - len(taps) + 1
    sums = np.zeros((count, inputs.shape[1]), np.float32)
    for back, tap in enumerate(taps):
        sums += tap * inputs[back : back + count]
    return sums
