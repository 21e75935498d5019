"""Decode blocks of GGUF's types: as numbers, to the last bit as the format defines them, or as matrices to pack.

Each type's layout is that of `ggml-quants.c`. A value is code · scale (+ offset), rounded once after the product and
once after the sum, as the format's own decoder rounds. As a matrix,

- Q4_0, Q4_1, Q4_K, IQ4_NL, IQ4_XS, MXFP4 have codes of 4 bits in groups of 32;
- Q8_0, Q5_0, Q5_1, Q5_K have whole numbers of 8 bits in groups of 32, Q6_K in groups of 16;
- Q2_K, Q3_K have codes of 4 bits in groups of 16.

Their scales and offsets are float32; products round them to 11 bits at most (`backends.grouped`). All but the last are
packed as they are (`GGUFBlocks`): a backend may read the blocks itself, and `packed` says to which matrix that comes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from msgspec import Struct

from inflight.execution.backends.matrices import LINEAR_CODES, Array, BlockMatrix, Int4Matrix, Int8Matrix
from inflight.execution.checkpoints.codes import MXFP4_CODES

PACKED_HERE = ("Q2_K", "Q3_K")  # which kernels do not read as they are
_PIECE = 2**20  # values that are unpacked at a time: what lies between stays in the cache
IQ4_MEANINGS = np.array([-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113], np.int8)
UNSIGNED_MEANINGS = np.arange(16, dtype=np.int8)
_LOW, _TWO_BITS = np.uint8(15), np.uint8(3)


class Codes(Struct, frozen=True):
    """Blocks split into their codes: value = meanings[code] · scale + offset, or code · scale + offset without
    meanings.

    codes: [blocks, groups, values of a group], uint8 where they have meanings, else int8. scales, offsets: float32
    [blocks, groups]; offsets None where the type has none.
    """

    codes: Array
    scales: Array
    offsets: Array | None
    meanings: Array | None

    def values(self) -> Array:
        """Return float32, in the order of `codes`."""
        whole = self.codes if self.meanings is None else self.meanings[self.codes]
        found = whole.astype(np.float32)
        with np.errstate(invalid="ignore", over="ignore"):  # a damaged file's scales may be no numbers
            found *= self.scales[..., None]
            if self.offsets is not None:
                found += self.offsets[..., None]
        return found


def readable() -> tuple[str, ...]:
    """Return the names of the types that are read."""
    return ("F32", "F16", "BF16", *_CODES)


def codes(kind: str, blocks: Array) -> Codes:
    """Split blocks, uint8 [blocks, bytes of one], of one of the types of `readable` that has blocks."""
    with np.errstate(invalid="ignore", over="ignore"):
        return _CODES[kind](blocks)


def dequantize(kind: str, blocks: Array, block_values: int) -> Array:
    """Return the numbers of blocks, uint8 [blocks, bytes of one]: float32 [blocks · block_values]."""
    found = np.empty(len(blocks) * block_values, np.float32)
    step = max(1, _PIECE // block_values)
    for start in range(0, len(blocks), step):
        piece = blocks[start : start + step]
        found[start * block_values : (start + len(piece)) * block_values] = codes(kind, piece).values().ravel()
    return found


# -- pieces ------------------------------------------------------------------------------------------------------------
def _halves(blocks: Array, begin: int) -> Array:
    """Read the float16 at byte `begin` of each block, as float32 [blocks, 1]."""
    return np.ascontiguousarray(blocks[:, begin : begin + 2]).view(np.float16).astype(np.float32)


def _nibbles(packed: Array, run: int) -> Array:
    """Split bytes [blocks, n] into [blocks, 2n]: of each `run` bytes first all lower halves, then all upper ones."""
    runs = packed.reshape(len(packed), -1, 1, run)
    return np.concatenate((runs & _LOW, runs >> np.uint8(4)), axis=2).reshape(len(packed), -1)


def _pairs(packed: Array, run: int) -> Array:
    """Split bytes [blocks, n] into [blocks, 4n] of two bits: of each `run` bytes all lowest pairs, then the next, …"""
    shifts = np.array([0, 2, 4, 6], np.uint8).reshape(1, 1, 4, 1)
    return ((packed.reshape(len(packed), -1, 1, run) >> shifts) & _TWO_BITS).reshape(len(packed), -1)


def _bits(packed: Array, run: int) -> Array:
    """Split bytes [blocks, n] into [blocks, 8n] of one bit: of each `run` bytes all lowest bits, then the next, …"""
    shifts = np.arange(8, dtype=np.uint8).reshape(1, 1, 8, 1)
    return ((packed.reshape(len(packed), -1, 1, run) >> shifts) & np.uint8(1)).reshape(len(packed), -1)


def _bits_in_order(packed: Array) -> Array:
    """Split bytes [blocks, n] into [blocks, 8n]: the bits of one byte are neighbours, the lowest first."""
    return np.unpackbits(packed, axis=1, bitorder="little")


def _grouped(whole: Array, groups: int) -> Array:
    return whole.reshape(len(whole), groups, -1)


# -- blocks of 32 with one scale ---------------------------------------------------------------------------------------
def _q4_0(blocks: Array) -> Codes:
    return Codes(_grouped(_nibbles(blocks[:, 2:], 16), 1), _halves(blocks, 0), None, LINEAR_CODES)


def _q4_1(blocks: Array) -> Codes:
    packed = _grouped(_nibbles(blocks[:, 4:], 16), 1)
    return Codes(packed, _halves(blocks, 0), _halves(blocks, 2), UNSIGNED_MEANINGS)


def _q5(blocks: Array, begin: int) -> Array:
    """Read codes of five bits: the highest ones first, then the lower four of each."""
    low, high = _nibbles(blocks[:, begin + 4 :], 16), _bits_in_order(blocks[:, begin : begin + 4])
    return np.asarray(low | (high << np.uint8(4)), np.int8)


def _q5_0(blocks: Array) -> Codes:
    return Codes(_grouped(_q5(blocks, 2) - np.int8(16), 1), _halves(blocks, 0), None, None)


def _q5_1(blocks: Array) -> Codes:
    return Codes(_grouped(_q5(blocks, 4), 1), _halves(blocks, 0), _halves(blocks, 2), None)


def _q8_0(blocks: Array) -> Codes:
    return Codes(_grouped(blocks[:, 2:].view(np.int8), 1), _halves(blocks, 0), None, None)


def _iq4_nl(blocks: Array) -> Codes:
    return Codes(_grouped(_nibbles(blocks[:, 2:], 16), 1), _halves(blocks, 0), None, IQ4_MEANINGS)


def _mxfp4(blocks: Array) -> Codes:
    """Split blocks of MXFP4. The scale is a power of two (E8M0, bias 127), halved, as the meanings are doubled."""
    exponents = blocks[:, :1].astype(np.int32)
    scales = np.ldexp(np.float32(1), exponents - 128).astype(np.float32)
    return Codes(_grouped(_nibbles(blocks[:, 1:], 16), 1), scales, None, MXFP4_CODES)


# -- blocks of 256 with scales of scales -------------------------------------------------------------------------------
def _q2_k(blocks: Array) -> Codes:
    """Split 16 groups of 16; each has four bits of scale and four of offset."""
    scales, offsets = blocks[:, :16] & _LOW, blocks[:, :16] >> np.uint8(4)
    packed = _grouped(_pairs(blocks[:, 16:80], 32), 16)
    return Codes(packed, _halves(blocks, 80) * scales, -(_halves(blocks, 82) * offsets), UNSIGNED_MEANINGS)


def _q3_k(blocks: Array) -> Codes:
    """Split 16 groups of 16 with six bits of scale; a set bit of the mask means that 4 is not subtracted.

    The meanings are those of all 4 bits from -4 on: codes 0 to 7 are used.
    """
    low, high = _nibbles(blocks[:, 96:104], 8), _pairs(blocks[:, 104:108], 4)
    scales = (low | (high << np.uint8(4))).astype(np.int8) - np.int8(32)
    packed = _pairs(blocks[:, 32:96], 32) | (_bits(blocks[:, :32], 32) << np.uint8(2))
    meanings = np.arange(-4, 12, dtype=np.int8)
    return Codes(_grouped(packed, 16), _halves(blocks, 108) * scales, None, meanings)


def _scales_and_offsets(packed: Array) -> tuple[Array, Array]:
    """Split twelve bytes of each block into 8 scales and 8 offsets of six bits."""
    first, second, third = packed[:, :4], packed[:, 4:8], packed[:, 8:]
    six, high = np.uint8(63), np.uint8(48)
    scales = np.concatenate((first & six, (third & _LOW) | ((first >> np.uint8(2)) & high)), axis=1)
    offsets = np.concatenate((second & six, (third >> np.uint8(4)) | ((second >> np.uint8(2)) & high)), axis=1)
    return scales, offsets


def _k_scales(blocks: Array) -> tuple[Array, Array]:
    """Return scales and offsets of Q4_K and Q5_K, float32 [blocks, 8]."""
    scales, offsets = _scales_and_offsets(blocks[:, 4:16])
    return _halves(blocks, 0) * scales, -(_halves(blocks, 2) * offsets)


def _q4_k(blocks: Array) -> Codes:
    scales, offsets = _k_scales(blocks)
    return Codes(_grouped(_nibbles(blocks[:, 16:], 32), 8), scales, offsets, UNSIGNED_MEANINGS)


def _q5_k(blocks: Array) -> Codes:
    scales, offsets = _k_scales(blocks)
    whole = _nibbles(blocks[:, 48:], 32) | (_bits(blocks[:, 16:48], 32) << np.uint8(4))
    return Codes(_grouped(whole.astype(np.int8), 8), scales, offsets, None)


def _q6_k(blocks: Array) -> Codes:
    """Split 16 groups of 16 with eight bits of scale."""
    whole = _nibbles(blocks[:, :128], 64) | (_pairs(blocks[:, 128:192], 32) << np.uint8(4))
    scales = _halves(blocks, 208) * blocks[:, 192:208].view(np.int8)
    return Codes(_grouped(whole.astype(np.int8) - np.int8(32), 16), scales, None, None)


def _iq4_xs(blocks: Array) -> Codes:
    """Split 8 groups of 32 with six bits of scale, the upper two of all groups first."""
    high = np.ascontiguousarray(blocks[:, 2:4]).view(np.uint16) >> np.arange(0, 16, 2, dtype=np.uint16)
    low = blocks[:, 4:8].reshape(len(blocks), 4, 1) >> np.array([0, 4], np.uint8)
    six = (low & _LOW).reshape(len(blocks), 8) | ((high & np.uint16(3)).astype(np.uint8) << np.uint8(4))
    scales = _halves(blocks, 0) * (six.astype(np.int8) - np.int8(32))
    return Codes(_grouped(_nibbles(blocks[:, 8:], 16), 8), scales, None, IQ4_MEANINGS)


_CODES: dict[str, Callable[[Array], Codes]] = {
    "Q4_0": _q4_0,
    "Q4_1": _q4_1,
    "Q5_0": _q5_0,
    "Q5_1": _q5_1,
    "Q8_0": _q8_0,
    "Q2_K": _q2_k,
    "Q3_K": _q3_k,
    "Q4_K": _q4_k,
    "Q5_K": _q5_k,
    "Q6_K": _q6_k,
    "IQ4_NL": _iq4_nl,
    "IQ4_XS": _iq4_xs,
    "MXFP4": _mxfp4,
}


# -- matrices ----------------------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class GGUFBlocks(BlockMatrix):
    """A matrix's blocks as the file has them, which a backend may read."""

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
    """Return the matrix as `packed` does, or the blocks where backends may read them as they are."""
    if kind in PACKED_HERE:
        return packed(kind, blocks, shape, block_values)
    return as_they_lie(kind, blocks, shape, block_values, pages)


def as_they_lie(
    kind: str, blocks: Array, shape: tuple[int, int], block_values: int, pages: Array | None = None
) -> GGUFBlocks:
    """Return the blocks of any type but those of `PACKED_HERE`. pages: of the map that the blocks are in; others as of
    `packed`."""
    return GGUFBlocks(kind, blocks.reshape(shape[0], -1), shape[1], block_values, pages)


def packed(kind: str, blocks: Array, shape: tuple[int, int], block_values: int) -> Int4Matrix | Int8Matrix:
    """Return the matrix of `shape` [outputs, inputs] whose rows these blocks are, uint8 [blocks, bytes of one]."""
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
