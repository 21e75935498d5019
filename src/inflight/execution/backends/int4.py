"""Quantize float32 to codes of 4 bits in numpy, with a scale for each group of inputs.

The kernels (`native/quantize4.h`) follow the rule to the last bit; `grouped.py` multiplies by the matrix found.
"""

from __future__ import annotations

import numpy as np

from inflight.execution.backends.matrices import LINEAR_CODES, Array, Int4Matrix

GROUP_SIZES = (32, 64, 128)
_SMALLEST = np.float32(2.0**-100)  # as in `int8.py`: a smaller number counts as 0
# A group's largest weight is tried as this many steps. The best scale is then fitted to the codes.
_STEPS = np.arange(7, 9.01, 0.125, dtype=np.float32)


def quantize(rows: Array, group: int) -> Int4Matrix:
    """float32[N, K] → codes from -8 to 7 and a scale for each group, symmetric.

    Of the scales that put a group's largest weight at 7, 7⅛ … 9 steps below zero, the one whose codes leave the least
    squared error once the scale is fitted to them (the first of equals). All is computed in units of that weight, in
    float32, sums in rising k. A group without a number above 2⁻¹⁰⁰ has scale 0, one with a NaN or an infinity NaN.
    """
    rows = np.asarray(rows, np.float32)
    n, columns = rows.shape
    groups = -(-columns // group)
    values = np.zeros((n, groups * group), np.float32)
    values[:, :columns] = rows
    values = values.reshape(n, groups, group)
    magnitudes = np.abs(values).max(axis=2)
    finite = np.isfinite(magnitudes)
    used = finite & (magnitudes >= _SMALLEST)
    first = np.argmax(np.abs(values) == magnitudes[..., None], axis=2)
    largest = np.where(used, np.take_along_axis(values, first[..., None], 2)[..., 0], np.float32(1))
    with np.errstate(invalid="ignore", over="ignore"):
        units = np.where(used[..., None], values * (np.float32(1) / largest)[..., None], 0).astype(np.float32)
    best = np.full((n, groups), -1, np.float32)
    codes = np.zeros(units.shape, np.float32)
    fitted = np.zeros((n, groups), np.float32)
    for steps in _STEPS:
        tried = np.clip(np.rint(units * -steps), -8, 7)
        product, square = np.zeros((n, groups), np.float32), np.zeros((n, groups), np.float32)
        for k in range(group):
            product = product + units[..., k] * tried[..., k]
            square = square + tried[..., k] * tried[..., k]
        scale = product / np.maximum(square, np.float32(1))
        gain = product * scale  # by which the squared error is below that of all zeros
        better = gain > best
        best, fitted = np.where(better, gain, best), np.where(better, scale, fitted)
        codes = np.where(better[..., None], tried, codes)
    scales = np.where(used, fitted * largest, np.where(finite, np.float32(0), np.float32(np.nan)))
    whole = (codes.reshape(n, -1)[:, :columns] + 8).astype(np.uint8)
    return Int4Matrix(whole, scales.astype(np.float32), None, group, LINEAR_CODES)
