"""int4 for numpy: weights as codes of 4 bits, with a scale and maybe an offset for each group of inputs.

Knows the one rule by which plain weights become codes, how scales are held, and what a product over them is, the same
to the last bit as in the kernels (`native/tile.h`):

    y[t, n] = x_scale[t] · factor[n] · Σ_g (scale[n, g] · Σ_k meaning[code[n, k]] · x[t, k]
                                            + offset[n, g] · Σ_k x[t, k])

over the inputs k of each group g, with x as whole numbers by the rule of `int8.py`; where a matrix has its inputs in
another order, x is taken in that order first. Sums over a group are whole
numbers, hence exact; that over groups is one float32 chain in rising g, in which each product is rounded before it is
added. Scales and offsets are float16 in units of a power of two of their output, its factor: the largest of them lies
in [2¹⁴, 2¹⁵), so that none overflows, what a file held in float16 is held exactly, and any other is rounded by at most
2⁻¹¹ of itself (one below 2⁻²⁸ of the output's largest by 2⁻³⁹ of that).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from inflight.execution.backends.matrices import LINEAR_CODES, Array, Int4Matrix, ReorderedMatrix

GROUP_SIZES = (32, 64, 128)
_SMALLEST = np.float32(2.0**-100)  # as in `int8.py`: what is smaller counts as 0
# A group's largest weight is tried as this many steps. The best scale is then fitted to the codes.
_STEPS = np.arange(7, 9.01, 0.125, dtype=np.float32)


@dataclass(frozen=True, slots=True)
class HeldInt4:
    """A matrix as it meets a product. The last group may be shorter than the others."""

    codes: Array  # uint8[N, K]
    scales: Array  # float16[N, groups]
    offsets: Array | None  # float16[N, groups]
    factors: Array  # float32[N]
    group: int
    meanings: Array  # int8[16]
    order: Array | None = None  # int32[K]: x's columns by the place of their codes; None: as they are

    @property
    def shape(self) -> tuple[int, int]:
        return self.codes.shape[0], self.codes.shape[1]

    @property
    def nbytes(self) -> int:
        """With two codes to a byte."""
        scales = self.scales.nbytes + (0 if self.offsets is None else self.offsets.nbytes)
        order = 0 if self.order is None else self.order.nbytes
        return int((self.codes.size + 1) // 2 + scales + self.factors.nbytes + order)

    def rows(self, at: Array) -> Array:
        """float32[len(at), K] of some outputs."""
        factors, group_of = self.factors[at, None], np.arange(self.codes.shape[1]) // self.group
        found = self.meanings[self.codes[at]] * (self.scales[at].astype(np.float32) * factors)[:, group_of]
        if self.offsets is not None:
            found = found + (self.offsets[at].astype(np.float32) * factors)[:, group_of]
        return np.asarray(found, np.float32)


def hold(matrix: Int4Matrix | ReorderedMatrix) -> HeldInt4:
    """Rounds scales and offsets. Those of an output with a NaN or an infinity among them are 0, its factor is NaN."""
    if isinstance(matrix, ReorderedMatrix):
        return replace(hold(matrix.matrix), order=matrix.order)
    both = matrix.scales if matrix.offsets is None else np.concatenate([matrix.scales, matrix.offsets], axis=1)
    largest = np.abs(both).max(axis=1, initial=0)
    finite = np.isfinite(largest)
    used = finite & (largest >= _SMALLEST)
    exponents = np.frexp(np.where(used, largest, np.float32(1)))[1]
    factors = np.where(used, np.ldexp(np.float32(1), exponents - 15), np.where(finite, 0, np.nan)).astype(np.float32)

    def halves(values: Array) -> Array:
        with np.errstate(invalid="ignore"):  # infinity · 0
            held = np.ldexp(np.asarray(values, np.float32), 15 - exponents[:, None])
        return np.where(used[:, None], held, 0).astype(np.float16)

    offsets = None if matrix.offsets is None else halves(matrix.offsets)
    return HeldInt4(matrix.codes, halves(matrix.scales), offsets, factors, matrix.group, matrix.meanings)


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


def product(x: Array, x_scales: Array, weight: HeldInt4) -> Array:
    """int8[T, K] and its scales by a held matrix → float32[T, N]."""
    x = x if weight.order is None else x[:, weight.order]
    found = np.zeros((len(x), weight.shape[0]), np.float32)
    meant = weight.meanings[weight.codes].astype(np.float64)  # float64 holds a group's sum exactly
    for g in range(weight.scales.shape[1]):
        at = slice(g * weight.group, (g + 1) * weight.group)
        sums = (x[:, at].astype(np.float64) @ meant[:, at].T).astype(np.float32)
        found = found + sums * weight.scales[:, g].astype(np.float32)
        if weight.offsets is not None:
            together = x[:, at].sum(axis=1, dtype=np.int64).astype(np.float32)
            found = found + together[:, None] * weight.offsets[:, g].astype(np.float32)
    return np.asarray(found * x_scales[:, None] * weight.factors, np.float32)
