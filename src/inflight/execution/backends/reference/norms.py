"""Norms of rows: float32[…, N] → float32[…, N], each row by itself.

Knows formulas and their order of rounding; not which rows are a token's, a head's or a part's.
"""

from __future__ import annotations

import numpy as np

from inflight.execution.backends.protocol import Array


def rms_normed(x: Array, weight: Array, eps: float) -> Array:
    """x / √(mean(x²) + ε) · weight, weight float32[N] (Zhang and Sennrich, arXiv 1910.07467)."""
    mean = np.mean(np.square(x, dtype=np.float32), axis=-1, keepdims=True, dtype=np.float32)
    return (x / np.sqrt(mean + np.float32(eps)) * weight).astype(np.float32)


def layer_normed(x: Array, weight: Array, bias: Array | None, eps: float) -> Array:
    """(x - mean(x)) / √(variance(x) + ε) · weight + bias, weight and bias float32[N] (Ba et al., arXiv 1607.06450).
    Mean and variance are summed in float64."""
    centred = x - np.mean(x, axis=1, keepdims=True, dtype=np.float64).astype(np.float32)
    variance = np.mean(np.square(centred, dtype=np.float64), axis=1, keepdims=True).astype(np.float32)
    normed: Array = centred / np.sqrt(variance + np.float32(eps)) * weight
    return normed if bias is None else normed + bias


def parts_normed(x: Array, weight: Array | None, eps: float) -> Array:
    """Apply the RMS norm to equal parts of a row, each by itself: a weight float32[N / n] norms n of them, one
    float32[N] the whole, which may be several heads. Rows without a weight stay as they are."""
    return x if weight is None else rms_normed(x.reshape(-1, len(weight)), weight, eps).reshape(x.shape)


def unit(x: Array) -> Array:
    """x / √(Σ x² + 10⁻⁶)."""
    found: Array = x / np.sqrt(np.sum(np.square(x), axis=-1, keepdims=True) + np.float32(1e-6))
    return found
