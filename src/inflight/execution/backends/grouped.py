"""Products over quantized weights in numpy: whole numbers of 4 or 8 bits with a scale for each group of inputs.

One rule holds for both widths, the same to the last bit as in the kernels (`native/gemm/tile.h`). The inputs of a row
are cut into spans of 32, or of 16 where so few share a scale of weights; x gets one scale for each 32 inputs
(`int8.py`):

    y[t, n] = factor[n] · Σ_s (((Σ_k w[n, k] · x[t, k]) · x_scale[t, s]) · scale[n, s]
                               + ((Σ_k x[t, k]) · x_scale[t, s]) · offset[n, s])

Sums over the inputs k of a span are whole numbers, hence exact; that over spans is one float32 chain in rising s, in
which each product is rounded before it is added. Where a matrix has its inputs in another order, x is taken in that
order first. Scales and offsets are held as float16 in units of a power of two of their output, its factor: the largest
of them lies in [2¹⁴, 2¹⁵), so that none overflows, a file's float16 is held exactly, and any other is rounded by at
most 2⁻¹¹ of itself (one below 2⁻²⁸ of the largest by 2⁻³⁹ of that). A matrix with one scale for each output, and other
than 16, 32, 64 or 128 inputs, has scales of 1 and that scale as the factor, which is exact.

Plain numbers that become int8 are mixed before they are rounded, each whole span of 32 inputs with itself, as keys are
(`channel_mixing.py`), and x that meets them is mixed as queries are: products stay as they are, and an outlier among
a token's activations is spread over its span. What a file holds in 4 or 8 bits stays as it is, and so does its x; so
does what comes as int8 beside int4 (`Packer`: the projections to values).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from inflight.execution.backends.channel_mixing import mixed_channels
from inflight.execution.backends.int8 import BLOCK, quantize_groups
from inflight.execution.backends.matrices import GROUPS, Array, Int4Matrix, Int8Matrix, ReorderedMatrix, in_int8

_SMALLEST = np.float32(2.0**-100)  # as in `int8.py`: a smaller number counts as 0


@dataclass(frozen=True, slots=True)
class GroupScales:
    """The scales of a matrix as products read them."""

    scales: Array  # float16[N, groups]
    offsets: Array | None  # float16[N, groups]
    factors: Array  # float32[N]
    group: int  # 16, 32, 64 or 128


@dataclass(frozen=True, slots=True)
class PackedMatrix:
    """A quantized matrix as it meets a product. The last group may be shorter than the others."""

    values: Array  # int8[N, K]
    scales: GroupScales
    bits: int
    order: Array | None = None  # int32[K]: x's columns by the index of their values; None: as they are
    mixed: bool = False  # spans of weights are mixed, and those of x are to be

    @property
    def shape(self) -> tuple[int, int]:
        return self.values.shape[0], self.values.shape[1]

    @property
    def nbytes(self) -> int:
        """Bytes with two values of 4 bits to a byte, and the scales of a large group for each 32 of its inputs."""
        spans = self.shape[0] * -(-self.shape[1] // min(BLOCK, self.scales.group))
        scales = spans * self.scales.scales.itemsize * (1 if self.scales.offsets is None else 2)
        order = 0 if self.order is None else self.order.nbytes
        return int((self.values.size * self.bits + 7) // 8 + scales + self.scales.factors.nbytes + order)

    def rows(self, at: Array) -> Array:
        """Return some outputs' weights, float32[len(at), K]."""
        factors, group_of = self.scales.factors[at, None], np.arange(self.values.shape[1]) // self.scales.group
        found = self.values[at] * (self.scales.scales[at].astype(np.float32) * factors)[:, group_of]
        if self.scales.offsets is not None:
            found = found + (self.scales.offsets[at].astype(np.float32) * factors)[:, group_of]
        return mixed_spans(found, is_query=True) if self.mixed else np.asarray(found, np.float32)

    def product(self, x: Array) -> Array:
        """float32[S, K] → float32[S, N] = x · Wᵀ, of x quantized by the rule above."""
        return product(x, self)


def hold_scales(matrix: Int4Matrix | Int8Matrix) -> GroupScales:
    """Round scales and offsets to float16. Those of an output with a NaN or an infinity among them are 0, and its
    factor is NaN."""
    if matrix.group not in GROUPS:  # one scale for each output
        ones = np.ones((matrix.shape[0], -(-matrix.shape[1] // BLOCK)), np.float16)
        return GroupScales(ones, None, np.ascontiguousarray(matrix.scales[:, 0], np.float32), BLOCK)
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
    return GroupScales(halves(matrix.scales), offsets, factors, matrix.group)


def hold(matrix: Int4Matrix | Int8Matrix | ReorderedMatrix) -> PackedMatrix:
    """Return a copy of a matrix as a product reads it."""
    if isinstance(matrix, ReorderedMatrix):
        return replace(hold(matrix.matrix), order=matrix.order.copy())
    if isinstance(matrix, Int4Matrix):
        return PackedMatrix(matrix.meanings[matrix.codes], hold_scales(matrix), 4)
    return PackedMatrix(matrix.values.copy(), hold_scales(matrix), 8)


def hold_mixed(weights: Array) -> PackedMatrix:
    """Return float32[N, K] in int8, its spans mixed."""
    return replace(hold(in_int8(mixed_spans(weights, is_query=False))), mixed=True)


def mixed_spans(rows: Array, is_query: bool) -> Array:
    """Return float32[N, K] with each whole span of 32 columns transformed (`mixed_channels`); a shorter one stays."""
    spans = rows.shape[1] // BLOCK
    found = np.array(rows, np.float32)
    with np.errstate(invalid="ignore"):  # infinity - infinity
        whole = mixed_channels(found[:, : spans * BLOCK].reshape(len(rows), spans, BLOCK), is_query)
    found[:, : spans * BLOCK] = whole.reshape(len(rows), spans * BLOCK)
    return found


def product(x: Array, weight: PackedMatrix) -> Array:
    """Multiply float32[T, K] by a held matrix → float32[T, N]."""
    held, columns = weight.scales, x.shape[1]
    x = x if weight.order is None else x[:, weight.order]
    whole, x_scales = quantize_groups(mixed_spans(x, is_query=True) if weight.mixed else x, BLOCK)
    found, span = np.zeros((len(x), weight.shape[0]), np.float32), min(BLOCK, held.group)
    for begin in range(0, columns, span):
        at, group, x_scale = slice(begin, begin + span), begin // held.group, x_scales[:, begin // BLOCK, None]
        # float64 holds a span's sum exactly
        sums = (whole[:, at].astype(np.float64) @ weight.values[:, at].astype(np.float64).T).astype(np.float32)
        found = found + sums * x_scale * held.scales[:, group].astype(np.float32)
        if held.offsets is not None:
            together = whole[:, at].sum(axis=1, dtype=np.int64).astype(np.float32)[:, None] * x_scale
            found = found + together * held.offsets[:, group].astype(np.float32)
    return np.asarray(found * held.factors, np.float32)
