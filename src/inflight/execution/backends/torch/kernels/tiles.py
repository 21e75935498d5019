"""How products are cut into tiles: the one table of sizes, and how many programs share the inputs of an output.

Knows what a matrix is held in and how many rows meet it. Few rows are bound by the bytes of the weights, so tiles are
narrow, for all multiprocessors to read, and many blocks are on their way at a time; many rows are bound by tensor
cores. None takes more than the 99 KiB of shared memory that a program has on a GPU for desktops.

invariant: the same row has the same bits among any number of rows. What decides them is how inputs are added up: by one
program, in blocks of one size, by one kind of instruction. From 64 rows on a tile uses a warp group's, below a warp's,
so that tiles of 16 rows and shared inputs are for those who do not ask for this. Whole numbers are always the same.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import torch
import triton

from inflight.execution.backends.torch.weights import Fp8Matrix, HeldMatrix, Int4Matrix, Int8Matrix, PlainMatrix


class Tiles(NamedTuple):
    """BLOCK_M, BLOCK_N, BLOCK_K of a program, its warps, and blocks of inputs that are on their way at a time. Of codes
    of 4 bits a block is a group at least, and four at most."""

    rows: int
    outputs: int
    inputs: int
    warps: int
    stages: int


Kind = Literal["plain", "float32", "int8", "fp8", "int4"]

#   at most 16 rows               at most 64 rows              more rows
TILES: dict[Kind, tuple[Tiles, Tiles, Tiles]] = {
    "plain": (Tiles(16, 32, 128, 4, 6), Tiles(64, 64, 64, 4, 4), Tiles(128, 128, 64, 8, 3)),
    "float32": (Tiles(16, 32, 32, 4, 3), Tiles(32, 32, 32, 4, 3), Tiles(32, 32, 32, 4, 3)),
    "int8": (Tiles(16, 32, 256, 4, 5), Tiles(64, 64, 128, 4, 4), Tiles(128, 128, 128, 8, 3)),
    "fp8": (Tiles(16, 32, 256, 4, 5), Tiles(64, 64, 128, 4, 4), Tiles(128, 128, 128, 8, 3)),
    "int4": (Tiles(16, 32, 256, 2, 4), Tiles(64, 64, 16, 4, 3), Tiles(128, 64, 16, 8, 3)),
}
FEW, SOME = 16, 64  # rows of the first two
_WARPS = 512  # that keep the memory of a large GPU busy
_LEAST_INPUTS = 2048  # of one of several programs that share an output: fewer are not worth adding up
_MOST_SPLITS = 8


def tiles_for(matrix: HeldMatrix, dtype: torch.dtype, rows: int, invariant: bool) -> Tiles:
    """rows: as many as meet the matrix; of experts, on average."""
    few, some, many = TILES[_kind(matrix, dtype)]
    exact = isinstance(matrix, Int8Matrix)
    tiles = few if rows <= FEW and (exact or not invariant) else some if rows <= SOME else many
    return tiles._replace(inputs=_of_groups(matrix, tiles.inputs)) if isinstance(matrix, Int4Matrix) else tiles


def splits_for(tiles: Tiles, outputs: int, columns: int, invariant: bool) -> int:
    """How many programs share the inputs of an output, equal parts of its blocks: some, where outputs alone give too
    few programs to keep the memory busy."""
    if tiles.rows > SOME or invariant:
        return 1
    warps: int = triton.cdiv(outputs, tiles.outputs) * tiles.warps
    blocks: int = triton.cdiv(columns, tiles.inputs)
    most = min(_WARPS // warps, columns // _LEAST_INPUTS, _MOST_SPLITS)
    return next((count for count in range(most, 1, -1) if blocks % count == 0), 1)


def _of_groups(matrix: Int4Matrix, most: int) -> int:
    """Inputs of a block of whole groups: as many as divide a row's, so that no block has less than the others."""
    groups = matrix.scales.shape[-1]
    counts = (count for count in (4, 2) if groups % count == 0 and count * matrix.group <= most)
    return matrix.group * next(counts, 1)


def _kind(matrix: HeldMatrix, dtype: torch.dtype) -> Kind:
    if isinstance(matrix, Int8Matrix):
        return "int8"
    if isinstance(matrix, Fp8Matrix):
        return "fp8"
    if dtype == torch.float32:
        return "float32"
    return "plain" if isinstance(matrix, PlainMatrix) else "int4"
