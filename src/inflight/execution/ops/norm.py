"""Norms of rows."""

from __future__ import annotations

import numpy as np

from inflight.execution.backends.protocol import Array
from inflight.execution.backends.protocol.handles import Activation, Vector
from inflight.execution.ops.formulas import parts_normed, rms_normed
from inflight.execution.ops.numpy_pass import NumpyPass
from inflight.execution.program import operation


@operation()
def rms_norm(on: NumpyPass, x: Activation, weight: Vector, eps: float, out: Activation) -> None:
    """x float32[S, E], weight float32[E] → out act[S, E], or float32[S, E], = x / sqrt(mean(x²) + eps) · weight."""
    on.store(rms_normed(x.written, weight, eps), out)


@operation()
def layer_norm(on: NumpyPass, x: Activation, weight: Vector, bias: Vector | None, eps: float, out: Activation) -> None:
    """x float32[S, E] → out act[S, E], or float32[S, E], = (x - mean(x)) / sqrt(variance(x) + eps) · weight +
    bias."""
    on.store(_layer_normed(x.written, weight, bias, eps), out)


@operation()
def layer_norm_sum(
    on: NumpyPass, x: Activation, weight: Vector, bias: Vector | None, eps: float, out: Activation
) -> None:
    """x float32[S, E] becomes its layer norm, in place, of which out act[S, E] has the same numbers."""
    x.written[:] = _layer_normed(x.written, weight, bias, eps)
    on.store(x.written, out)


@operation()
def add(on: NumpyPass, x: Activation, norm: Vector | None, eps: float, factor: float, out: Activation) -> None:
    """x float32[S, E], or its RMS norm where there is a weight float32[E] for it: added, times `factor`, to out
    float32[S, E]. A weight float32[E / n] norms each of n equal parts of a row by itself."""
    out.written[:] += np.float32(factor) * parts_normed(x.written, norm, eps)


def _layer_normed(x: Array, weight: Array, bias: Array | None, eps: float) -> Array:
    """(x - mean(x)) / √(variance(x) + ε) · weight + bias, weight and bias float32[N] (Ba et al., arXiv 1607.06450).
    Mean and variance are summed in float64."""
    centred = x - np.mean(x, axis=1, keepdims=True, dtype=np.float64).astype(np.float32)
    variance = np.mean(np.square(centred, dtype=np.float64), axis=1, keepdims=True).astype(np.float32)
    normed: Array = centred / np.sqrt(variance + np.float32(eps)) * weight
    return normed if bias is None else normed + bias
