"""How products are cut into tiles: the one table of sizes, and how many programs share the inputs of an output.

Sizes depend on how a matrix is packed and how many rows meet it. Few rows are bound by the bytes of the weights, so
tiles are narrow, for all multiprocessors to read, and many blocks are on their way at a time; many rows are bound by
tensor cores. None but one, which is asked for by that, takes more than the 99 KiB of shared memory that a program has
on a GPU for desktops.

invariant: the same row has the same bits among any number of rows. What decides them is how inputs are added up: in
blocks and parts whose sizes follow from the weight, by one kind of instruction. From 64 rows on a tile uses a warp
group's, below a warp's, so that tiles of 16 rows are for those who do not ask for this, and parts that follow from the
rows. Whole numbers are always the same.
"""

from __future__ import annotations

from functools import cache
from typing import Literal, NamedTuple

import torch
import triton
from triton.runtime import driver

from inflight.execution.backends.torch.weights import Fp8Matrix, GroupedMatrix, Int8Matrix, PackedMatrix, PlainMatrix


class Tiles(NamedTuple):
    """BLOCK_M, BLOCK_N, BLOCK_K of a program, its warps, and blocks of inputs that are on their way at a time. Of codes
    of groups a block is a group at least, and four at most."""

    rows: int
    outputs: int
    inputs: int
    warps: int
    stages: int


Kind = Literal["plain", "float32", "int8", "fp8", "int4", "grouped int8"]

# By the rows that they are for, at most; the last are for more. As an H200 has them fastest, where it was asked: plain
# ones and int4 of few rows on products of Llama-3.1-8B. Those of int8 in groups were never measured.
TILES: dict[Kind, dict[int, Tiles]] = {
    "plain": {16: Tiles(16, 32, 128, 2, 6), 64: Tiles(64, 64, 64, 4, 4), 128: Tiles(128, 128, 64, 8, 3)},
    "float32": {16: Tiles(16, 32, 32, 4, 3), 32: Tiles(32, 32, 32, 4, 3)},
    "int8": {16: Tiles(16, 32, 256, 4, 5), 64: Tiles(64, 64, 128, 4, 4), 128: Tiles(128, 128, 128, 8, 3)},
    "fp8": {16: Tiles(16, 32, 256, 4, 5), 64: Tiles(64, 64, 128, 4, 4), 128: Tiles(128, 128, 128, 8, 3)},
    "int4": {
        16: Tiles(16, 64, 128, 4, 4),
        32: Tiles(32, 64, 256, 4, 4),
        64: Tiles(64, 64, 16, 4, 3),
        128: Tiles(128, 64, 16, 8, 3),
    },
    "grouped int8": {
        16: Tiles(16, 64, 128, 4, 4),
        32: Tiles(32, 64, 128, 4, 4),
        64: Tiles(64, 64, 16, 4, 3),
        128: Tiles(128, 64, 16, 8, 2),
    },
}
# Where bits may not depend on the rows: a warp group's instruction, blocks of inputs of one size.
INVARIANT: dict[Kind, dict[int, Tiles]] = {
    "plain": {64: Tiles(64, 64, 64, 4, 6), 128: Tiles(128, 128, 64, 8, 3)},
    "float32": {32: Tiles(32, 32, 32, 4, 3)},
    "int8": TILES["int8"],  # whole numbers are always the same
    "fp8": {64: Tiles(64, 64, 128, 4, 4), 128: Tiles(128, 128, 128, 8, 3)},
    "int4": {64: Tiles(64, 64, 16, 4, 3), 128: Tiles(128, 64, 16, 8, 3)},
    "grouped int8": {64: Tiles(64, 64, 16, 4, 3), 128: Tiles(128, 64, 16, 8, 2)},
}
# In the place of the last of plain ones, where a program may have as much shared memory, up to as many rows: with more
# a program has all parts of its outputs, and two sums of such a tile are more than registers hold.
WIDE, WIDE_SHARED, WIDE_ROWS = Tiles(128, 256, 64, 8, 3), 160 << 10, 512
# Rows up to which products are ours that cuBLAS has, too.
OURS: dict[Kind, int] = {"plain": 16, "int4": 32, "grouped int8": 32}
_SOME = 64


class Parts(NamedTuple):
    """How the inputs of an output are divided: a number of runs of blocks, whose sums are added up in order. separate:
    a program for each, and another kernel that adds up."""

    number: int
    separate: bool


WHOLE = Parts(1, False)
_WARPS, _WARPS_OF_CODES = 512, 1024  # that keep the memory of a large GPU busy; codes of groups keep warps busy, too
_MIN_INPUTS = 1024  # of a part: fewer are not worth adding up
_MAX_PARTS = 8
# Where parts may not depend on the rows: outputs of a program of few rows, how many programs are enough then, and how
# many of all rows for each to have all parts.
_INVARIANT_OUTPUTS, _INVARIANT_PROGRAMS = 64, 256
SEPARATE_BELOW = 256


def tiles_for(matrix: PackedMatrix, dtype: torch.dtype, rows: int, invariant: bool) -> Tiles:
    """rows: as many as meet the matrix; of experts, on average."""
    kind = kind_of(matrix, dtype)
    found = (INVARIANT if invariant else TILES)[kind]
    tiles = found[next((most for most in found if rows <= most), max(found))]
    if invariant and kind == "plain" and 64 < rows <= WIDE_ROWS and _shared(matrix) >= WIDE_SHARED:
        tiles = WIDE
    return tiles._replace(inputs=_of_groups(matrix, tiles.inputs)) if isinstance(matrix, GroupedMatrix) else tiles


def parts_for(matrix: PackedMatrix, tiles: Tiles, rows: int, outputs: int, columns: int, invariant: bool) -> Parts:
    """Several where outputs alone give too few programs to keep the memory busy. invariant: as many for any number of
    rows, by one program where rows are enough to make many."""
    is_codes = isinstance(matrix, GroupedMatrix)
    blocks: int = triton.cdiv(columns, tiles.inputs)
    if invariant:
        of_outputs: int = triton.cdiv(outputs, _INVARIANT_OUTPUTS)
        most = min(_INVARIANT_PROGRAMS // of_outputs, columns // _MIN_INPUTS, _MAX_PARTS)
        count = _divisor(blocks, most)
        programs: int = triton.cdiv(rows, tiles.rows) * triton.cdiv(outputs, tiles.outputs)
        # Codes and two sums together need too many registers.
        return Parts(count, count > 1 and (is_codes or programs < SEPARATE_BELOW))
    if tiles.rows > _SOME:
        return WHOLE
    warps: int = triton.cdiv(outputs, tiles.outputs) * tiles.warps
    enough = _WARPS_OF_CODES if is_codes else _WARPS
    count = _divisor(blocks, min(enough // warps, columns // _MIN_INPUTS, _MAX_PARTS))
    return Parts(count, count > 1)


def _shared(matrix: PackedMatrix) -> int:
    """Bytes that a program may have at most where the matrix lies; 0 where there is no GPU."""
    device = (matrix.values if isinstance(matrix, PlainMatrix) else matrix.codes).device
    return _shared_of(device.index) if device.type == "cuda" else 0


@cache
def _shared_of(gpu: int) -> int:
    found: int = driver.active.utils.get_device_properties(gpu)["max_shared_mem"]
    return found


def _divisor(blocks: int, most: int) -> int:
    """Return the largest number of equal runs into which blocks divide, at most `most`."""
    return next((count for count in range(most, 1, -1) if blocks % count == 0), 1)


def _of_groups(matrix: GroupedMatrix, most: int) -> int:
    """Return the inputs of a block of whole groups: as many as divide a row's, so that all blocks are equal."""
    groups = matrix.scales.shape[-1]
    counts = (count for count in (4, 2) if groups % count == 0 and count * matrix.group <= most)
    return matrix.group * next(counts, 1)


def kind_of(matrix: PackedMatrix, dtype: torch.dtype) -> Kind:
    if isinstance(matrix, Int8Matrix):
        return "int8"
    if isinstance(matrix, Fp8Matrix):
        return "fp8"
    if dtype == torch.float32:
        return "float32"
    if isinstance(matrix, PlainMatrix):
        return "plain"
    return "int4" if matrix.bits == 4 else "grouped int8"
