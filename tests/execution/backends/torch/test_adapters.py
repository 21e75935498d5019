"""Adapters in their slots on a device, and which rows of a pass have which: tiles, tables, and addresses that stay."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
import torch
from msgspec import structs

from inflight.core.types.plan import Capacity, Chunk
from inflight.execution.backends.protocol import Delta, LowRank
from inflight.execution.backends.torch.adapted_matrix import RANKS, TILE, AdaptedMatrix, max_tiles, tiled
from inflight.execution.backends.torch.adapters import AdapterTables, filled_up
from inflight.execution.backends.torch.backend import TorchBackend
from inflight.execution.backends.torch.buckets import Buckets
from inflight.execution.backends.torch.device_batch import mirrored
from inflight.execution.backends.torch.upload import Upload

from ...batch.test_input_batch import new_request
from ..material import normal
from .adapter_tensors import Part, a_weight, adapter
from .opened import on_cpu

CPU = torch.device("cpu")
SLOTS = 3


class Tables(AdapterTables):
    """Tables over adapters of their own."""

    def __init__(self) -> None:
        self._placed: dict[int, Any] = {}
        super().__init__(self._placed, SLOTS, CPU, Upload(CPU))

    def place(self, slot: int, adapter: Any | None) -> None:
        self._placed.pop(slot, None)
        if adapter is not None:
            self._placed[slot] = adapter
        self.update([slot])


def tables() -> Tables:
    return Tables()


def lines(adapted: AdaptedMatrix | None, slot: int) -> list[list[int]]:
    """Read the memory behind the table's addresses."""
    assert adapted is not None
    return [one[2:] for one in adapted.table[slot].tolist()]


# -- which rows have which --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(20))
def test_every_row_with_an_adapter_has_one_place_in_a_tile_of_its_slot(seed: int) -> None:
    chance = random.Random(seed)
    slots = [chance.randrange(-1, SLOTS) for _ in range(chance.randrange(0, 90))]
    rows, of_tiles = tiled(np.array(slots, np.int32), SLOTS)
    assert len(rows) == TILE * len(of_tiles) and len(of_tiles) == max_tiles(len(slots), SLOTS)
    found = {}
    for numbers, slot in zip(rows.reshape(-1, TILE), of_tiles.tolist(), strict=True):
        assert (numbers > 0).any() == (slot > 0)
        found |= {int(number) - 1: slot - 1 for number in numbers[numbers > 0]}
    assert found == {row: slot for row, slot in enumerate(slots) if slot >= 0}
    assert np.count_nonzero(rows) == len(found)


def test_tiles_are_enough_when_each_slot_has_one_that_is_not_full_and_no_more() -> None:
    slots = np.array([*[0] * (TILE + 1), *[1] * (TILE + 1), *[2] * (TILE + 1)], np.int32)
    _, of_tiles = tiled(slots, SLOTS)
    assert of_tiles.tolist() == [1, 1, 2, 2, 3, 3]
    assert max_tiles(1, 8) == 1 and max_tiles(0, 8) == 0


# -- what they add ----------------------------------------------------------------------------------------------------


def test_a_table_has_what_each_adapter_changes() -> None:
    of, first, second = tables(), a_weight(60, 24), a_weight(30, 24)
    assert of.shape == 0 and of.of(first) is None
    of.place(0, adapter(first, [Part(0, 3, 40), Part(40, 3, 20)], torch.float32, CPU))
    assert of.shape == 1 and of.of(second) is None
    assert lines(of.of(first), 0) == [[RANKS, 0, 40], [RANKS, 40, 20]]
    of.place(2, adapter(second, [Part(5, 20, 9)], torch.float32, CPU))
    assert of.shape == 2
    assert lines(of.of(first), 0) == [[RANKS, 0, 40], [RANKS, 40, 20]]
    assert lines(of.of(first), 2) == [[0, 0, 0], [0, 0, 0]]
    assert lines(of.of(second), 2) == [[24, 5, 9], [0, 0, 0]]
    adapted = of.of(second)
    assert adapted is not None and adapted.extent == (1, 24, 9)
    (part,) = adapted.parts(2)
    assert adapted.table[2, 0, :2].tolist() == [part.down.data_ptr(), part.up.data_ptr()]


def test_an_adapter_that_changes_no_more_than_those_before_moves_nothing() -> None:
    of, weight = tables(), a_weight(60, 24)
    of.place(0, adapter(weight, [Part(0, 8, 40), Part(40, 16, 20)], torch.float32, CPU))
    before = of.of(weight)
    assert before is not None
    for slot, parts in ((1, [Part(0, 16, 10)]), (0, [Part(7, 4, 40)])):
        of.place(0, None)
        of.place(slot, adapter(weight, parts, torch.float32, CPU))
        assert of.of(weight) is before and of.shape == 1
    assert lines(before, 1) == [[16, 0, 10], [0, 0, 0]] and lines(before, 0) == [[RANKS, 7, 40], [0, 0, 0]]
    for parts in ([Part(0, 17, 10)], [Part(0, 8, 41)], [Part(0, 8, 1), Part(1, 8, 1), Part(2, 8, 1)]):
        shape = of.shape
        of.place(2, adapter(weight, parts, torch.float32, CPU))
        assert of.shape == shape + 1
    assert lines(of.of(weight), 1) == [[16, 0, 10], [0, 0, 0], [0, 0, 0]]


def test_rows_whose_slot_is_empty_have_none() -> None:
    of, wanted = tables(), np.array([-1, 0, 2, 0], np.int32)
    assert of.slots_of(wanted) is None
    of.place(2, adapter(a_weight(60, 24), [Part(0, 4, 9)], torch.float32, CPU))
    found = of.slots_of(wanted)
    assert found is not None and found.tolist() == [-1, -1, 2, -1]
    assert of.slots_of(wanted[:2]) is None
    of.place(2, None)
    assert of.slots_of(wanted) is None


def test_an_adapter_may_change_nothing() -> None:
    of = tables()
    of.place(0, TorchBackend.pack_adapter(on_cpu(), ()))
    assert of.shape == 0 and of.slots_of(np.array([0], np.int32)) is not None


def test_ranks_are_filled_up_with_zeros() -> None:
    weight = a_weight(60, 24)
    given = LowRank(4, normal(1, 5, 24), normal(2, 9, 5))
    (found,) = filled_up(Delta(weight, (given,))).parts
    assert (found.first, found.down.shape, found.up.shape) == (4, (RANKS, 24), (9, RANKS))
    assert (found.down[:5] == given.down).all() and not found.down[5:].any()
    assert (found.up[:, :5] == given.up).all() and not found.up[:, 5:].any()
    with pytest.raises(ValueError, match="A must be"):
        on_cpu().pack_adapter([Delta(weight, (LowRank(0, normal(1, 4, 24), normal(2, 9, 5)),))])


# -- a pass -----------------------------------------------------------------------------------------------------------


def test_passes_of_a_bucket_find_their_rows_adapters_at_the_same_addresses() -> None:
    capacity = Capacity(num_blocks=64, block_size=16, max_rows=4, max_model_len=100, vocab_size=50, adapter_slots=SLOTS)
    batch = mirrored(capacity, 64, None, CPU, Upload(CPU), Buckets((1, 2, 4)))
    batch.set_adapter(1, adapter(a_weight(60, 24), [Part(0, 4, 9)], torch.float32, CPU))
    new = tuple(structs.replace(new_request(row, [1, 2]), adapter_slot=slot) for row, slot in enumerate((-1, 1, 1, 0)))
    batch.update((), new)
    tables_of = {row: (5 + row,) for row in range(4)}

    def decode(*rows: int) -> tuple[list[int], list[int], tuple[int, int]] | None:
        chunks = [Chunk(row, row, 0, 1, tables_of.pop(row, ()), 1) for row in rows]
        batch.update(chunks)
        found = batch.mirror.begin(batch, chunks, 65).adapted
        if found is None:
            return None
        return found.rows.tolist(), found.slots.tolist(), (found.rows.data_ptr(), found.slots.data_ptr())

    first, second = decode(0, 1, 2), decode(2, 0, 3)
    assert first is not None and second is not None
    assert first[0][:3] == [2, 3, 0] and second[0][:3] == [1, 0, 0]
    assert first[1] == second[1] == [2, *[0] * (max_tiles(4, SLOTS) - 1)]
    assert first[2] == second[2]
    assert decode(0, 3) is None
