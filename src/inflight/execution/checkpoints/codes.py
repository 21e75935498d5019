"""Hold a quantized matrix of any format as codes, the numbers that they stand for, and scales."""

from __future__ import annotations

import numpy as np
from msgspec import Struct

from inflight.execution.backends.fp8 import E4M3
from inflight.execution.backends.int8 import quantize_groups
from inflight.execution.backends.matrices import (
    GROUPS,
    INT8_GROUP,
    Array,
    Fp8Matrix,
    Int4Matrix,
    Int8Matrix,
    Matrix,
    ReorderedMatrix,
    by_output,
)

WHOLE_8 = np.arange(256).astype(np.uint8).view(np.int8)  # what bytes mean that are whole numbers with a sign
OFFSET_8 = np.arange(-128, 128).astype(np.int8)  # what bytes mean of which 128 is to be taken
# The doubles of MXFP4's 0, 0.5, 1, 1.5, 2, 3, 4, 6, and of their negatives.
MXFP4_CODES: Array = np.array([0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12], np.int8)
_PIECE = 1 << 20  # numbers that are decoded at a time, so that no matrix is in memory in float32 beside its packed form


class Codes(Struct, frozen=True):
    """W[n, k] = (meanings[codes[n, k]] - zeros[n // span, groups[k]]) · scales[n // span, groups[k]].

    Codes of 4 bits have G groups of the same number of inputs each, a multiple of 16. `matrix` keeps codes of 4 bits
    and whole numbers of 8 bits exactly, and floats of 8 bits where they are kept. Floats of 8 bits that become whole
    numbers, and whole numbers of 8 bits whose groups are no neighbours, are rounded once more.
    """

    codes: Array  # uint8[N, K]
    meanings: Array  # int8[16], int8[256], or float32[256] of floats of 8 bits
    scales: Array  # float32[⌈N / span⌉, G]
    zeros: Array | None  # float32, as scales; None: all zero
    groups: Array  # int32[K], from 0 to G - 1
    span: int = 1  # outputs that share scales

    def numbers(self) -> Array:
        """Return float32[N, K], rounded once."""
        found = np.empty(self.codes.shape, np.float32)
        for begin, end in self._pieces():
            found[begin:end] = self._rows(begin, end)
        return found

    def matrix(self, keep_fp8: bool = False) -> Matrix:
        """Return the matrix to pack. keep_fp8: floats of 8 bits as they are where an output has one scale."""
        whole = self.meanings.dtype == np.int8
        if len(self.meanings) == 16:
            return self._grouped(self.codes)
        if self.scales.shape[1] == 1 and self.zeros is None and whole:
            return by_output(_looked_up(self.meanings, self.codes), self._by_output())
        if keep_fp8 and self.meanings is E4M3 and self.scales.shape[1] == 1:
            return Fp8Matrix(self.codes, self._by_output())
        inputs, held = len(self.groups), self.scales.shape[1]
        if whole and self._in_place() and inputs % held == 0 and inputs // held % GROUPS[-1] == 0:
            return self._grouped(_looked_up(self.meanings, self.codes))
        return self._requantized()

    def _by_output(self) -> Array:
        return np.repeat(self.scales[:, 0], self.span)[: len(self.codes)]

    def _grouped(self, codes: Array) -> Matrix:
        inputs, held = len(self.groups), self.scales.shape[1]
        group = next(one for one in GROUPS if inputs // held % one == 0)
        times = inputs // held // group

        def of_groups(numbers: Array) -> Array:
            of_outputs = numbers if self.span == 1 else np.repeat(numbers, self.span, axis=0)[: len(self.codes)]
            return np.repeat(of_outputs, times, axis=1)

        scales = of_groups(self.scales)
        # A whole number of 5 bits times a scale of 11: exact in float32, and so is the sum with a code's own part.
        offsets = None if self.zeros is None else of_groups(-self.zeros * self.scales)
        if codes.dtype == np.int8:
            return Int8Matrix(codes, scales, offsets, group)
        order = None if self._in_place() else np.argsort(self.groups, kind="stable")
        codes = codes if order is None else np.take(codes, order, axis=1)
        found = Int4Matrix(codes, scales, offsets, group, self.meanings)
        return found if order is None else ReorderedMatrix(found, order.astype(np.int32))

    def _requantized(self) -> Int8Matrix:
        outputs, inputs = self.codes.shape
        values, scales = np.empty((outputs, inputs), np.int8), np.empty((outputs, -(-inputs // INT8_GROUP)), np.float32)
        for begin, end in self._pieces():
            values[begin:end], scales[begin:end] = quantize_groups(self._rows(begin, end), INT8_GROUP)
        return Int8Matrix(values, scales, None, INT8_GROUP)

    def _rows(self, begin: int, end: int) -> Array:
        found = _looked_up(self.meanings.astype(np.float32), self.codes[begin:end])
        if self.zeros is not None:
            found -= self._spread(self.zeros, begin, end)
        found *= self._spread(self.scales, begin, end)
        return found

    def _spread(self, values: Array, begin: int, end: int) -> Array:
        """Expand scales or zeros to one for each weight of these outputs."""
        first = begin // self.span
        used = values[first : (end - 1) // self.span + 1]
        if self._in_place():
            wide = np.repeat(used, np.bincount(self.groups, minlength=values.shape[1]), axis=1)
        else:
            wide = np.take(used, self.groups, axis=1)
        return wide if self.span == 1 else wide[np.arange(begin, end) // self.span - first]

    def _in_place(self) -> bool:
        """Return whether the inputs of a group are neighbours, from the first group to the last."""
        return bool(np.all(self.groups[1:] >= self.groups[:-1]))

    def _pieces(self) -> list[tuple[int, int]]:
        outputs, inputs = self.codes.shape
        step = max(1, _PIECE // max(1, inputs))
        return [(begin, min(begin + step, outputs)) for begin in range(0, outputs, step)]


def _looked_up(meanings: Array, codes: Array) -> Array:
    return np.take(meanings, codes, mode="wrap")  # none is out of bounds; to look for one would take twice the time


def unpacked(words: Array, bits: int) -> Array:
    """Return the codes of 4 or 8 bits of int32[R, C], those of the lowest bits first: uint8[R, C · 32 / bits]."""
    octets = np.ascontiguousarray(words).view(np.uint8)
    return octets if bits == 8 else nibbles(octets)


def nibbles(octets: Array) -> Array:
    """Split uint8[R, C] into uint8[R, 2 · C], the lower four bits first."""
    codes = np.empty((octets.shape[0], 2 * octets.shape[1]), np.uint8)
    np.bitwise_and(octets, 15, out=codes[:, 0::2])
    np.right_shift(octets, 4, out=codes[:, 1::2])
    return codes


def zeros_or_none(zeros: Array) -> Array | None:
    """Return zeros in float32; None where all are zero."""
    return zeros.astype(np.float32) if zeros.any() else None
