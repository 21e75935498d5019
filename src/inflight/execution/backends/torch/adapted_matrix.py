"""A packed matrix that adapters change (`protocol.adapters`), as an argument of operations on a device.

Knows what the adapters in memory add to it, and where; not how that is computed, nor which rows have which adapter.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor

from inflight.execution.backends.packed_adapter import AdapterPart, PackedAdapter
from inflight.execution.backends.torch.weights import DeviceGateUp, DeviceLinear

AdaptedWeight = DeviceLinear | DeviceGateUp

RANKS = 8  # that an adapter's are filled up to a multiple of, with zeros: rows of B then begin where vectors may
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
