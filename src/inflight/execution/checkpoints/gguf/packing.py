"""Blocks of GGUF's types as the few matrices that backends pack.

Every type keeps its numbers: its scales and offsets are written out in float32, and products round them to 11 bits at
most (`backends.grouped`).

- Q4_0, Q4_1, Q4_K, IQ4_NL, IQ4_XS, MXFP4 → codes of 4 bits in groups of 32;
- Q8_0, Q5_0, Q5_1, Q5_K → whole numbers of 8 bits in groups of 32, Q6_K in groups of 16;
- Q2_K, Q3_K → codes of 4 bits in groups of 16.

All but the last are handed on as they lie (`GGUFBlocks`): a backend may read them itself, and `packed` says which
matrix that must come to.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from inflight.execution.backends.matrices import Array, BlockMatrix, Int4Matrix, Int8Matrix
from inflight.execution.checkpoints.gguf.dequantize import Codes, codes, dequantize

PACKED_HERE = ("Q2_K", "Q3_K")  # which kernels do not read as they lie
_PIECE = 2**20  # values at a time, as in `dequantize`


@dataclass(frozen=True, slots=True)
class GGUFBlocks(BlockMatrix):
    @property
    def is_int8(self) -> bool:
        return self._codes_of_type().meanings is None

    @property
    def group(self) -> int:
        return int(self._codes_of_type().codes.shape[2])

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
    """Split one empty block, for what all blocks of the type share; cached, since it is needed for each expert."""
    return codes(kind, np.zeros((1, nbytes), np.uint8))


def matrix_of(
    kind: str, blocks: Array, shape: tuple[int, int], block_values: int, pages: Array | None = None
) -> GGUFBlocks | Int4Matrix | Int8Matrix:
    """As `packed`, or the blocks themselves where backends may read them as they lie."""
    if kind in PACKED_HERE:
        return packed(kind, blocks, shape, block_values)
    return as_they_lie(kind, blocks, shape, block_values, pages)


def as_they_lie(
    kind: str, blocks: Array, shape: tuple[int, int], block_values: int, pages: Array | None = None
) -> GGUFBlocks:
    """Arguments as of `packed`; of any type but those of `PACKED_HERE`. pages: of the map in which the blocks lie."""
    return GGUFBlocks(kind, blocks.reshape(shape[0], -1), shape[1], block_values, pages)


def packed(kind: str, blocks: Array, shape: tuple[int, int], block_values: int) -> Int4Matrix | Int8Matrix:
    """blocks: uint8 [blocks, bytes of one], row by row of a matrix of `shape` [outputs, inputs]."""
    first = codes(kind, blocks[:1])
    _, groups, group = first.codes.shape
    whole = np.empty((len(blocks), groups, group), first.codes.dtype)
    scales = np.empty((len(blocks), groups), np.float32)
    offsets = None if first.offsets is None else np.empty_like(scales)
    step = max(1, _PIECE // block_values)
    for start in range(0, len(blocks), step):
        taken = codes(kind, blocks[start : start + step])
        end = start + len(taken.codes)
        whole[start:end], scales[start:end] = taken.codes, taken.scales
        if offsets is not None:
            offsets[start:end] = taken.offsets
    by_row = (shape[0], shape[1] // group)
    scales, offsets = scales.reshape(by_row), None if offsets is None else offsets.reshape(by_row)
    if first.meanings is None:
        return Int8Matrix(whole.reshape(shape), scales, offsets, group)
    return Int4Matrix(whole.reshape(shape), scales, offsets, group, first.meanings)
