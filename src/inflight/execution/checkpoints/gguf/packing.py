"""Blocks of GGUF's types as the few matrices that backends pack.

Knows which types keep every number as they are (4 bits in groups of 32: scales and offsets of a block are written out
in float32), and what is done to the others, whose groups are smaller or whose codes are longer than a kernel has:

- Q4_0, Q4_1, Q4_K, IQ4_NL, IQ4_XS, MXFP4 → codes of 4 bits in groups of 32: the same values, bit for bit;
- Q8_0, Q5_0, Q5_1, Q5_K, Q6_K → 8 bits with a scale for each output, rounded anew;
- Q2_K, Q3_K → codes of 4 bits in groups of 16: the same values, bit for bit, at more bytes than the file has.

What rounding costs stands in docs/models.md.
"""

from __future__ import annotations

import numpy as np

from inflight.execution.backends.int8 import quantize
from inflight.execution.backends.matrices import Array, Int4Matrix, Int8Matrix
from inflight.execution.checkpoints.gguf.dequantize import codes, dequantize

EXACT = ("Q4_0", "Q4_1", "Q4_K", "IQ4_NL", "IQ4_XS", "MXFP4", "Q2_K", "Q3_K")
_PIECE = 2**20  # values at a time, as in `dequantize`


def packed(kind: str, blocks: Array, shape: tuple[int, int], block_values: int) -> Int4Matrix | Int8Matrix:
    """blocks: uint8 [blocks, bytes of one], row by row of a matrix of `shape` [outputs, inputs]."""
    return _int4(kind, blocks, shape, block_values) if kind in EXACT else _int8(kind, blocks, shape, block_values)


def _int4(kind: str, blocks: Array, shape: tuple[int, int], block_values: int) -> Int4Matrix:
    first = codes(kind, blocks[:1])
    assert first.meanings is not None
    groups = first.scales.shape[1]
    group = block_values // groups
    whole = np.empty((len(blocks), groups, group), np.uint8)
    scales = np.empty((len(blocks), groups), np.float32)
    offsets = None if first.offsets is None else np.empty_like(scales)
    step = max(1, _PIECE // block_values)
    for start in range(0, len(blocks), step):
        taken = codes(kind, blocks[start : start + step])
        end = start + len(taken.codes)
        whole[start:end], scales[start:end] = taken.codes, taken.scales
        if offsets is not None:
            offsets[start:end] = taken.offsets
    rows = shape[0]
    return Int4Matrix(
        whole.reshape(shape),
        scales.reshape(rows, -1),
        None if offsets is None else offsets.reshape(rows, -1),
        group,
        first.meanings,
    )


def _int8(kind: str, blocks: Array, shape: tuple[int, int], block_values: int) -> Int8Matrix:
    values, scales = np.empty(shape, np.int8), np.empty(shape[0], np.float32)
    row_blocks = shape[1] // block_values
    step = max(1, _PIECE // shape[1])
    for start in range(0, shape[0], step):
        end = min(start + step, shape[0])
        rows = dequantize(kind, blocks[start * row_blocks : end * row_blocks], block_values)
        values[start:end], scales[start:end] = quantize(rows.reshape(-1, shape[1]))
    return Int8Matrix(values, scales)
