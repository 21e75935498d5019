"""Tables on a device of the parts that the adapters in slots (`protocol.handles`) add to packed matrices.

Kernels read addresses of parts from a table whose own address stays: a graph that was captured with some adapters is
replayed with others. What it launches follows from the most that adapters change (`AdaptedMatrix`), which grows with
those that come and never shrinks: then `AdapterTables.shape` is another, and earlier graphs are void.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import chain

import numpy as np
import torch
from torch import Tensor

from inflight.execution.backends.packed_adapter import PackedAdapter
from inflight.execution.backends.protocol import Array, Delta, LowRank
from inflight.execution.backends.torch.adapted_matrix import FIELDS, RANKS, AdaptedMatrix, AdaptedWeight, Extent
from inflight.execution.backends.torch.upload import Upload, bits


class AdapterTables:
    """shape: of what is launched for passes with adapters, a number that rises; 0: no adapter has changed anything."""

    def __init__(
        self, adapters: Mapping[int, PackedAdapter[Tensor]], num_slots: int, device: torch.device, upload: Upload
    ) -> None:
        """adapters: by slot, as the input batch has them."""
        self.num_slots, self.shape = num_slots, 0
        self._adapters, self._device, self._upload = adapters, device, upload
        self._weights: dict[int, AdaptedWeight] = {}  # by identity, in the order of the tables
        self._extents: dict[int, Extent] = {}
        self._matrices: dict[int, AdaptedMatrix] = {}
        self._numbers = np.zeros((0, num_slots, 0, FIELDS), np.int64)  # what the tables hold
        self._tables = torch.zeros(self._numbers.shape, dtype=torch.int64, device=device)

    def update(self, slots: Iterable[int]) -> None:
        """Write the lines of slots whose adapter is another. Those of an empty slot are unused."""
        filled = [slot for slot in slots if slot in self._adapters]
        if not filled:
            return
        before = dict(self._extents)
        for weight, parts in chain.from_iterable(self._adapters[slot].deltas() for slot in filled):
            self._weights.setdefault(id(weight), weight)
            self._extents[id(weight)] = self._extents.get(id(weight), Extent()).with_parts(parts)
        if self._extents != before:
            self._enlarge()
        else:
            for slot in filled:
                self._fill(slot)
        if self._numbers.size:  # an adapter may change nothing
            (sent,) = self._upload.send([bits(self._numbers)])
            self._tables.copy_(sent.view(torch.int64).view(self._tables.shape))

    def of(self, weight: AdaptedWeight) -> AdaptedMatrix | None:
        """Return a matrix that adapters change; None: no adapter changes it."""
        return self._matrices.get(id(weight))

    def slots_of(self, wanted: Array) -> Array | None:
        """Return slots, int32[T], with -1 for those that are empty; None where no other is left. wanted: slots; -1:
        none."""
        if not self._adapters:
            return None
        known = np.full(self.num_slots + 1, -1, np.int32)
        filled = list(self._adapters)
        known[filled] = filled
        found: Array = known[wanted]
        return found if (found >= 0).any() else None

    def _enlarge(self) -> None:
        """Make tables for all that is changed now, elsewhere in memory."""
        parts = max(extent.parts for extent in self._extents.values())
        self._numbers = np.zeros((len(self._weights), self.num_slots, parts, FIELDS), np.int64)
        self._tables = torch.zeros(self._numbers.shape, dtype=torch.int64, device=self._device)
        self._matrices = {
            key: AdaptedMatrix(weight, self._adapters, table, self._extents[key])
            for (key, weight), table in zip(self._weights.items(), self._tables, strict=True)
        }
        self.shape += 1
        for slot in self._adapters:
            self._fill(slot)

    def _fill(self, slot: int) -> None:
        self._numbers[:, slot] = 0
        for index, weight in enumerate(self._weights.values()):
            for number, part in enumerate(self._adapters[slot].of(weight)):
                addresses = part.down.data_ptr(), part.up.data_ptr()
                self._numbers[index, slot, number] = (*addresses, len(part.down), part.first, len(part.up))


def filled_up(delta: Delta) -> Delta:
    """Fill ranks up to a multiple of RANKS, with zeros."""
    return Delta(delta.weight, tuple(_filled_up(part) for part in delta.parts))


def _filled_up(part: LowRank) -> LowRank:
    more = -part.up.shape[1] % RANKS
    return LowRank(part.first, np.pad(part.down, ((0, more), (0, 0))), np.pad(part.up, ((0, 0), (0, more))))
