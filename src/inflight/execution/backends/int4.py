"""Quantize float32 to codes of 4 bits in numpy, with a scale and an offset for each group of inputs.

The kernels (`native/weights/group_scales.h`) follow the rule to the last bit; `grouped.py` multiplies by the matrix
found. An offset costs as much memory as half the inputs to a scale would, errs as little on normal weights and less
where a few of a group are far larger than the others.
"""

from __future__ import annotations

import numpy as np

from inflight.execution.backends.matrices import LINEAR_CODES, Array, Int4Matrix

GROUP_SIZES = (32, 64, 128)
_SMALLEST = np.float32(2.0**-100)  # as in `int8.py`: a smaller number counts as 0
# A group's range is tried as this many steps. The best scale and offset are then fitted to the codes.
_STEPS = np.arange(14, 16.01, 0.25, dtype=np.float32)


def quantize(rows: Array, group: int) -> Int4Matrix:
    """float32[N, K] → codes from -8 to 7, a scale and an offset for each group.

    A group's smallest weight gets code -8; its range is tried as 14, 14¼ … 16 steps of a code, which ends at 7. Of
    these the one is taken whose codes leave the least squared error once scale and offset are fitted to them (the first
    of equals). All is computed in units of the range, in float32, sums in rising k. A group whose range is below 2⁻¹⁰⁰
    has scale 0 and its smallest weight as the offset; one with a NaN, an infinity or an infinite range has scale NaN.
    """
    rows = np.asarray(rows, np.float32)
    whole = rows.shape[1] // group * group
    parts = [_quantized(rows[:, :whole].reshape(len(rows), -1, group)), _quantized(rows[:, None, whole:])]
    codes, scales, offsets = zip(*(part for part in parts if part[0].shape[1]), strict=True)
    return Int4Matrix(
        np.concatenate(codes, axis=1),
        np.concatenate(scales, axis=1),
        np.concatenate(offsets, axis=1),
        group,
        LINEAR_CODES,
    )


def _quantized(values: Array) -> tuple[Array, Array, Array]:
    """float32[N, groups, inputs] → codes uint8[N, groups · inputs], scales and offsets float32[N, groups]."""
    *rows_groups, inputs = values.shape
    count = np.float32(inputs)
    if not values.size:
        return values.reshape(len(values), 0).astype(np.uint8), *(np.zeros((len(values), 0), np.float32),) * 2
    with np.errstate(invalid="ignore", over="ignore"):
        least = values.min(axis=-1) + np.float32(0)  # never -0
        width = values.max(axis=-1) - least
        finite = np.isfinite(values).all(axis=-1) & np.isfinite(width)
        used = finite & (width >= _SMALLEST)
        inverse = np.float32(1) / np.where(used, width, np.float32(1))
        units = np.where(used[..., None], (values - least[..., None]) * inverse[..., None], np.float32(0))
    total = _sum(units)
    best = np.full(rows_groups, -1, np.float32)
    slope, centre, codes = np.zeros_like(best), np.zeros_like(best), np.zeros_like(units)
    for steps in _STEPS:
        tried = np.minimum(np.rint(units * steps), np.float32(15)) - np.float32(8)
        together, squares, products = _sum(tried), _sum(tried * tried), _sum(units * tried)
        common = count * products - total * together
        fitted = common / np.maximum(count * squares - together * together, np.float32(1))
        gain = fitted * common  # by which the squared error is below that of the mean, times the inputs
        better = gain > best
        best, slope = np.where(better, gain, best), np.where(better, fitted, slope)
        centre = np.where(better, (total - fitted * together) / count, centre)
        codes = np.where(better[..., None], tried, codes)
    with np.errstate(invalid="ignore", over="ignore"):
        scales = np.where(used, slope * width, np.where(finite, np.float32(0), np.float32(np.nan)))
        offsets = np.where(finite, least + np.where(used, centre * width, np.float32(0)), np.float32(0))
    return (codes + 8).astype(np.uint8).reshape(len(values), -1), scales, offsets


def _sum(values: Array) -> Array:
    """Sum along the last axis in rising order."""
    found = np.zeros(values.shape[:-1], np.float32)
    for k in range(values.shape[-1]):
        found = found + values[..., k]
    return found
