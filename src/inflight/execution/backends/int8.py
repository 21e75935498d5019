"""int8 for numpy: a row of numbers as whole numbers from -127 to 127 and one scale.

Knows the one rule by which weights (a scale for each output), activations (one for each token), keys and values (one
for each position of a head) are quantized, the same to the last bit as in the kernels (`native/quantize.h`). Symmetric:
value ≈ q · scale with scale = largest magnitude / 127, q = nearest(value · (127 / largest)), ties to even.
"""

from __future__ import annotations

from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]

_SMALLEST = np.float32(2.0**-100)  # below it 127 / largest would not be finite


def quantize(rows: Array) -> tuple[Array, Array]:
    """float32[N, K] → int8[N, K] and scales float32[N].

    A row without a number above 2⁻¹⁰⁰ is all zeros with scale 0; one with a NaN or an infinity is all zeros with scale
    NaN, so that what it yields is seen as broken.
    """
    rows = np.asarray(rows, np.float32)
    largest = np.abs(rows).max(axis=1, initial=0)
    finite = np.isfinite(largest)
    used = finite & (largest >= _SMALLEST)
    safe = np.where(used, largest, np.float32(1))
    scales = np.where(used, safe / np.float32(127), np.where(finite, np.float32(0), np.float32(np.nan)))
    inverse = np.where(used, np.float32(127) / safe, np.float32(0))[:, None]
    with np.errstate(invalid="ignore"):  # infinity · 0
        whole = np.rint(rows * inverse)
    return np.where(used[:, None], whole, 0).astype(np.int8), scales.astype(np.float32)


def product(x: Array, x_scales: Array, weight: Array, weight_scales: Array) -> Array:
    """int8[T, K] · int8[N, K]ᵀ → float32[T, N], the sum of whole numbers times the token's scale, then the output's.

    Sums are formed in float64, which holds them exactly."""
    sums = x.astype(np.float64) @ weight.astype(np.float64).T
    return np.asarray(sums.astype(np.float32) * x_scales[:, None] * weight_scales, np.float32)
