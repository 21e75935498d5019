"""Blocks of GGUF's types as the few matrices that backends pack.

Knows which types keep every number as they are (codes of 4 bits in groups of 32: their scales and offsets are written
out in float32), and what is done to the others, whose codes are longer, or whose groups are smaller than kernels have:

- Q4_0, Q4_1, Q4_K, IQ4_NL, IQ4_XS, MXFP4 → codes of 4 bits in groups of 32: the same values, bit for bit;
- Q8_0, Q5_0, Q5_1, Q5_K, Q6_K → 8 bits with a scale for each output, rounded anew;
- Q2_K, Q3_K → codes of 4 bits for each two groups of 16, with a scale and an offset fitted to their values.

All but the last are handed on as they lie (`GGUFBlocks`): a backend may read them itself, and `packed` says what that
must come to. What rounding costs is measured by `benchmarks.gguf_accuracy` and stands in docs/models.md.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from inflight.execution.backends.int8 import quantize
from inflight.execution.backends.matrices import Array, BlockMatrix, Int4Matrix, Int8Matrix
from inflight.execution.checkpoints.gguf.dequantize import UNSIGNED_MEANINGS, Codes, codes, dequantize

EXACT = ("Q4_0", "Q4_1", "Q4_K", "IQ4_NL", "IQ4_XS", "MXFP4")
MERGED = ("Q2_K", "Q3_K")
GROUP = 32
_PIECE = 2**20  # values at a time, as in `dequantize`
_FITS = 2  # times that scale and offset are fitted to the codes; a third changes the error by less than a hundredth


@dataclass(frozen=True, slots=True)
class GGUFBlocks(BlockMatrix):
    @property
    def is_int8(self) -> bool:
        return self.kind not in EXACT

    @property
    def has_offsets(self) -> bool:
        return self._codes_of_type().offsets is not None

    @property
    def meanings(self) -> Array:
        found = self._codes_of_type().meanings
        assert found is not None
        return found

    def unpacked(self) -> Int4Matrix | Int8Matrix:
        return packed(self.kind, self._blocks(), self.shape, self.block_values)

    def numbers(self) -> Array:
        return dequantize(self.kind, self._blocks(), self.block_values).reshape(self.shape)

    def _codes_of_type(self) -> Codes:
        return _codes_of_type(self.kind, self._blocks().shape[1])

    def _blocks(self) -> Array:
        return self.rows.reshape(-1, self.rows.shape[1] * self.block_values // self.columns)


@lru_cache
def _codes_of_type(kind: str, nbytes: int) -> Codes:
    """Of one empty block: what all blocks of the type have in common, asked for each of a thousand experts."""
    return codes(kind, np.zeros((1, nbytes), np.uint8))


def matrix_of(
    kind: str, blocks: Array, shape: tuple[int, int], block_values: int, pages: Array | None = None
) -> GGUFBlocks | Int4Matrix | Int8Matrix:
    """As `packed`, or the blocks themselves where backends may read them as they lie."""
    if kind in MERGED:
        return packed(kind, blocks, shape, block_values)
    return as_they_lie(kind, blocks, shape, block_values, pages)


def as_they_lie(
    kind: str, blocks: Array, shape: tuple[int, int], block_values: int, pages: Array | None = None
) -> GGUFBlocks:
    """Arguments as of `packed`; of any type but those that are merged. pages: of the map in which the blocks lie."""
    return GGUFBlocks(kind, blocks.reshape(shape[0], -1), shape[1], block_values, pages)


def packed(kind: str, blocks: Array, shape: tuple[int, int], block_values: int) -> Int4Matrix | Int8Matrix:
    """blocks: uint8 [blocks, bytes of one], row by row of a matrix of `shape` [outputs, inputs]."""
    if kind in EXACT:
        return _as_held(kind, blocks, shape, block_values)
    return (_merged if kind in MERGED else _int8)(kind, blocks, shape, block_values)


def _as_held(kind: str, blocks: Array, shape: tuple[int, int], block_values: int) -> Int4Matrix:
    first, groups = codes(kind, blocks[:1]), block_values // GROUP
    assert first.meanings is not None
    whole = np.empty((len(blocks), groups, GROUP), np.uint8)
    scales = np.empty((len(blocks), groups), np.float32)
    offsets = None if first.offsets is None else np.empty_like(scales)
    step = max(1, _PIECE // block_values)
    for start in range(0, len(blocks), step):
        taken = codes(kind, blocks[start : start + step])
        end = start + len(taken.codes)
        whole[start:end], scales[start:end] = taken.codes, taken.scales
        if offsets is not None:
            offsets[start:end] = taken.offsets
    return _int4(whole, scales, offsets, shape, first.meanings)


def _merged(kind: str, blocks: Array, shape: tuple[int, int], block_values: int) -> Int4Matrix:
    groups = block_values // GROUP
    whole = np.empty((len(blocks) * groups, GROUP), np.uint8)
    scales, offsets = np.empty((2, len(whole)), np.float32)
    step = max(1, _PIECE // block_values)
    for start in range(0, len(blocks), step):
        values = dequantize(kind, blocks[start : start + step], block_values).reshape(-1, GROUP)
        at = slice(start * groups, start * groups + len(values))
        whole[at], scales[at], offsets[at] = fitted(values)
    return _int4(whole, scales, offsets, shape, UNSIGNED_MEANINGS)


def fitted(values: Array) -> tuple[Array, Array, Array]:
    """float32[groups, values of one] → codes from 0 to 15, scales and offsets: at first so that the least value has the
    code 0 and the largest 15, then by least squares, in turns with the codes. A group with a NaN or an infinity has
    the scale NaN."""
    finite = np.asarray(np.isfinite(values).all(axis=1))
    values = np.where(finite[:, None], values, 0)
    offsets = values.min(axis=1)
    scales = (values.max(axis=1) - offsets) / np.float32(15)
    middle = values.mean(axis=1)
    for _ in range(_FITS):
        steps = _codes(values, scales, offsets).astype(np.float32)
        mean = steps.mean(axis=1)
        steps -= mean[:, None]
        spread = np.einsum("gk,gk->g", steps, steps)
        together = np.einsum("gk,gk->g", steps, values - middle[:, None])
        scales = np.where(spread > 0, together / np.maximum(spread, np.float32(1e-6)), 0).astype(np.float32)
        offsets = middle - scales * mean
    return _codes(values, scales, offsets), np.where(finite, scales, np.float32(np.nan)), offsets


def _codes(values: Array, scales: Array, offsets: Array) -> Array:
    inverse = np.divide(1, scales, out=np.zeros_like(scales), where=scales > 0)
    return np.asarray(np.clip(np.rint((values - offsets[:, None]) * inverse[:, None]), 0, 15), np.uint8)


def _int4(whole: Array, scales: Array, offsets: Array | None, shape: tuple[int, int], meanings: Array) -> Int4Matrix:
    by_row = (shape[0], shape[1] // GROUP)
    held = None if offsets is None else offsets.reshape(by_row)
    return Int4Matrix(whole.reshape(shape), scales.reshape(by_row), held, GROUP, meanings)


def _int8(kind: str, blocks: Array, shape: tuple[int, int], block_values: int) -> Int8Matrix:
    values, scales = np.empty(shape, np.int8), np.empty(shape[0], np.float32)
    row_blocks = shape[1] // block_values
    step = max(1, _PIECE // shape[1])
    for start in range(0, shape[0], step):
        end = min(start + step, shape[0])
        rows = dequantize(kind, blocks[start * row_blocks : end * row_blocks], block_values)
        values[start:end], scales[start:end] = quantize(rows.reshape(-1, shape[1]))
    return Int8Matrix(values, scales)
