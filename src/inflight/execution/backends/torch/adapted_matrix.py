"""Arguments of operations that add adapters (`protocol.handles`) on a device: a packed matrix that they change, and
the rows of a pass that have one, in tiles of rows with the same adapter.

How many tiles there are depends on how many rows and adapter slots alone: a captured graph launches the same programs
for any rows, and programs of empty tiles end at once.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from torch import Tensor

from inflight.execution.backends.packed_adapter import AdapterPart, PackedAdapter
from inflight.execution.backends.protocol import Array
from inflight.execution.backends.torch.weights import DeviceGateUp, DeviceLinear

AdaptedWeight = DeviceLinear | DeviceGateUp

RANKS = 8  # that an adapter's are filled up to a multiple of, with zeros: rows of B then begin where vectors may
TILE = 16  # rows; as few as tensor cores take, since an adapter has few rows of a decode
FIELDS = 5  # of a part: addresses of A and of B, rank, first output, outputs


class Extent(NamedTuple):
    """The most that any adapter changes of a matrix."""

    parts: int = 0
    rank: int = 0
    outputs: int = 0  # of a part

    def with_parts(self, parts: list[AdapterPart[Tensor]]) -> Extent:
        return Extent(
            max(self.parts, len(parts)),
            max(self.rank, *(len(one.down) for one in parts)),
            max(self.outputs, *(len(one.up) for one in parts)),
        )


@dataclass(frozen=True, slots=True)
class AdaptedMatrix:
    """A packed matrix that adapters change. adapters: by slot. table: int64[slots, parts, FIELDS] on the device, at
    least as many parts as the extent has; a part that an adapter has not is of rank 0."""

    weight: AdaptedWeight
    adapters: Mapping[int, PackedAdapter[Tensor]]
    table: Tensor
    extent: Extent

    def parts(self, slot: int) -> list[AdapterPart[Tensor]]:
        """Return the parts of the slot's adapter: down act[R, K], up act[outputs, R]."""
        return self.adapters[slot].of(self.weight)


class AdapterRows(NamedTuple):
    """Rows with an adapter, in tiles of one adapter each, on the device."""

    rows: Tensor  # int32[tiles · TILE], from 1; 0 is no row
    slots: Tensor  # int32[tiles], from 1; 0: an empty tile


def tiled(slots: Array, num_slots: int) -> tuple[Array, Array]:
    """Return the arrays of `AdapterRows`, in the order of slots, then of rows. slots: int32[T], of each row; -1: it has
    none."""
    rows = np.flatnonzero(slots >= 0)
    rows = rows[np.argsort(slots[rows], kind="stable")]
    counts = np.bincount(slots[rows], minlength=num_slots)
    of_slot = -(-counts // TILE)
    first_row, first_tile = np.cumsum(counts) - counts, np.cumsum(of_slot) - of_slot
    tiles = max_tiles(len(slots), num_slots)
    of_rows, of_tiles = np.zeros(tiles * TILE, np.int32), np.zeros(tiles, np.int32)
    at = (first_tile * TILE - first_row)[slots[rows]] + np.arange(len(rows))
    of_rows[at] = rows + 1
    of_tiles[: of_slot.sum()] = np.repeat(np.arange(num_slots), of_slot) + 1
    return of_rows, of_tiles


def max_tiles(rows: int, num_slots: int) -> int:
    """Return how many tiles there can be: of each slot one that is not full, of the other rows full ones."""
    return (rows + min(rows, num_slots) * (TILE - 1)) // TILE
