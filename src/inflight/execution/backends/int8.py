"""Quantize float32 to whole numbers of 8 bits in numpy.

The rule is symmetric: value ≈ q · scale with scale = largest magnitude / 127 and q = nearest(value · (127 / largest)),
ties to even, so that q lies from -127 to 127. The kernels (`native/gemm/quantize.h`) follow it to the last bit. Keys
and values have one scale for each position of a head; weights and the activations that meet them have one for each
group of inputs, so that an outlier among a token's activations coarsens its own 32 neighbours and no others.
"""

from __future__ import annotations

from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]

BLOCK = 32  # activations that share a scale where they meet quantized weights
_SMALLEST = np.float32(2.0**-100)  # below it 127 / largest would not be finite


def quantize(rows: Array) -> tuple[Array, Array]:
    """Quantize each row with one scale: float32[N, K] → int8[N, K] and scales float32[N].

    A row without a number above 2⁻¹⁰⁰ is all zeros with scale 0; one with a NaN or an infinity is all zeros with scale
    NaN, so that its products are visibly broken.
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


def quantize_groups(rows: Array, group: int) -> tuple[Array, Array]:
    """Quantize each `group` neighbours of a row with one scale: float32[N, K] → int8[N, K] and float32[N, ⌈K / group⌉].

    The last group of a row may be shorter than the others. Groups that cannot be scaled are as rows in `quantize`.
    """
    rows = np.asarray(rows, np.float32)
    n, columns = rows.shape
    groups = -(-columns // group)
    padded = np.zeros((n, groups * group), np.float32)
    padded[:, :columns] = rows
    whole, scales = quantize(padded.reshape(n * groups, group))
    return np.ascontiguousarray(whole.reshape(n, groups * group)[:, :columns]), scales.reshape(n, groups)
