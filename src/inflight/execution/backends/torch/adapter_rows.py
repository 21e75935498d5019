"""Which of a pass's rows have an adapter, in tiles of rows that have the same one: the host's arithmetic.

Knows slots of rows; not what an adapter adds. How many tiles there are follows from how many rows and slots: a captured
graph launches the same programs for any rows, and programs of empty tiles end at once.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from torch import Tensor

from inflight.execution.backends.protocol import Array

TILE = 16  # rows; as few as tensor cores take, since an adapter has few rows of a decode


class AdapterRows(NamedTuple):
    """On the device."""

    rows: Tensor  # int32[tiles · TILE], from 1; 0 is no row
    slots: Tensor  # int32[tiles], from 1; 0: an empty tile


def tiled(slots: Array, num_slots: int) -> tuple[Array, Array]:
    """slots: of each row, int32[T], -1 where it has none. Arrays as `AdapterRows` has them, in the order of slots, then
    of rows."""
    rows = np.flatnonzero(slots >= 0)
    rows = rows[np.argsort(slots[rows], kind="stable")]
    counts = np.bincount(slots[rows], minlength=num_slots)
    of_slot = -(-counts // TILE)
    first_row, first_tile = np.cumsum(counts) - counts, np.cumsum(of_slot) - of_slot
    tiles = max_tiles(len(slots), num_slots)
    placed, whose = np.zeros(tiles * TILE, np.int32), np.zeros(tiles, np.int32)
    place = (first_tile * TILE - first_row)[slots[rows]] + np.arange(len(rows))
    placed[place] = rows + 1
    whose[: of_slot.sum()] = np.repeat(np.arange(num_slots), of_slot) + 1
    return placed, whose


def max_tiles(rows: int, num_slots: int) -> int:
    """As many as there can be: of each slot one that is not full, of the others' rows full ones."""
    return (rows + min(rows, num_slots) * (TILE - 1)) // TILE
