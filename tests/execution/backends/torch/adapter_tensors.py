"""Random adapters in their slots, packed as a device holds them: for the tests of what they add to a product."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch

from inflight.execution.backends.packed_adapter import PackedAdapter
from inflight.execution.backends.protocol import Delta, LowRank
from inflight.execution.backends.torch.adapted_matrix import AdaptedMatrix, AdaptedWeight, AdapterRows, tiled
from inflight.execution.backends.torch.adapters import AdapterTables, filled_up
from inflight.execution.backends.torch.packing import Packer
from inflight.execution.backends.torch.upload import Upload
from inflight.execution.backends.torch.weights import DeviceLinear

from ..material import normal


class Part(NamedTuple):
    """Make a part of a matrix's outputs from `first` on."""

    first: int
    rank: int
    outputs: int


def a_weight(outputs: int, columns: int) -> DeviceLinear:
    """Make a matrix whose own numbers are not read."""
    return DeviceLinear((), outputs, columns, 0)


def adapter(
    weight: AdaptedWeight, parts: Sequence[Part], act: torch.dtype, device: torch.device, seed: int = 0
) -> PackedAdapter[torch.Tensor]:
    delta = Delta(weight, tuple(_low_rank(part, weight.columns, 9 * seed + at) for at, part in enumerate(parts)))
    return PackedAdapter([filled_up(delta)], Packer(act, device).plain)


def in_slots(
    weight: AdaptedWeight, slots: Sequence[Sequence[Part]], act: torch.dtype, device: torch.device
) -> AdaptedMatrix:
    """slots: of each the parts that its adapter changes."""
    adapters = {slot: adapter(weight, parts, act, device, slot) for slot, parts in enumerate(slots)}
    tables = AdapterTables(adapters, len(slots), device, Upload(device))
    tables.update(adapters)
    found = tables.of(weight)
    assert found is not None
    return found


def rows_of(slots: Sequence[int], num_slots: int, device: torch.device) -> AdapterRows:
    arrays = tiled(np.array(slots, np.int32), num_slots)
    return AdapterRows(*(torch.from_numpy(one).to(device) for one in arrays))


def _low_rank(part: Part, columns: int, seed: int) -> LowRank:
    return LowRank(part.first, normal(seed, part.rank, columns) / 8, normal(seed + 5, part.outputs, part.rank))
