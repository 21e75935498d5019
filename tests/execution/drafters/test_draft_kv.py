"""How much of a row's blocks holds a drafter's keys and values: against an account of every position by itself."""

from __future__ import annotations

import random
from typing import Literal

import pytest

from inflight.core.types.plan import BatchPlan, Capacity, Chunk, NewRequest, Transfer
from inflight.core.types.sampling import SamplingParams
from inflight.execution.backends.null import NullBackend
from inflight.execution.backends.protocol import KVShape
from inflight.execution.batch.input_batch import InputBatch
from inflight.execution.drafters.draft_kv import DraftKV

BLOCKS, HOST, ROWS, SIZE = 30, 10, 4, 16
CAPACITY = Capacity(BLOCKS, SIZE, ROWS, 160, 100, host_blocks=HOST)


class ReferenceKV:
    """Keeps of every position of every block whether the drafter's part is there and right."""

    def __init__(self) -> None:
        self.kv = DraftKV(NullBackend(), KVShape.uniform(1, SIZE, 1, 2), CAPACITY)
        self.batch = InputBatch(CAPACITY, BLOCKS)
        self.there = [[False] * SIZE for _ in range(BLOCKS + 1 + HOST)]
        self.tables: dict[int, list[int]] = {}
        self.lengths: dict[int, int] = {}

    def start(self, row: int, blocks: list[int], start: int, length: int) -> None:
        new = NewRequest(row, (1,) * (start + length), start + length, SamplingParams(), 0, 0)
        self.tables[row] = []
        self._step(row, start, length, blocks, (new,))

    def go_on(self, row: int, start: int, length: int, free: list[int]) -> None:
        lacking = -(-(start + length) // SIZE) - len(self.tables[row])
        self._step(row, start, length, [free.pop() for _ in range(lacking)], ())

    def _step(self, row: int, start: int, length: int, blocks: list[int], new: tuple[NewRequest, ...]) -> None:
        plan = BatchPlan(0, (Chunk(0, row, start, length, tuple(blocks), 1),), new)
        self.batch.update(plan.chunks, new)
        self.kv.begin(plan, self.batch)
        self.tables[row] += blocks
        self.lengths[row] = start + length
        for position in range(start, -(-(start + length) // SIZE) * SIZE):
            self._at(row, position)[position % SIZE] = False

    def draft(self, row: int, end: int) -> None:
        self.kv.note_computed(self.batch, row, end)
        for position in range(end):
            self._at(row, position)[position % SIZE] = True

    def copy(self, source: int, destination: int) -> None:
        self.kv.copy([source], [destination])
        self.there[destination] = list(self.there[source])

    def check(self) -> None:
        for row, length in self.lengths.items():
            for end in {1, length // 2 + 1, length}:
                there = [self._at(row, position)[position % SIZE] for position in range(end)]
                assert self.kv.num_computed(self.batch, row, end) == (there.index(False) if False in there else end)

    def _at(self, row: int, position: int) -> list[bool]:
        return self.there[self.tables[row][position // SIZE]]


@pytest.mark.parametrize("seed", range(30))
def test_what_is_there_is_what_was_computed_and_not_written_since(seed: int) -> None:
    chance, reference = random.Random(seed), ReferenceKV()
    for _ in range(60):
        kind, row = chance.random(), chance.randrange(ROWS)
        used = {block for table in reference.tables.values() for block in table}
        free = [block for block in range(BLOCKS) if block not in used]
        if row not in reference.tables or kind < 0.1 or reference.lengths[row] > 120:
            reference.tables.pop(row, None)
            shared = next(
                iter(reference.tables.values()), []
            )  # whole blocks of another, as the prefix cache gives them
            whole = min(len(shared), max(0, reference.lengths.get(next(iter(reference.tables), -1), 0) - 1) // SIZE)
            shared, length = shared[:whole], chance.randrange(1, 40)
            count = -(-(whole * SIZE + length) // SIZE) - whole
            reference.start(row, [*shared, *chance.sample(free, count)], whole * SIZE, length)
        elif kind < 0.6:  # some of the last positions were drafts that were wrong
            begin = max(len_of_shared(reference, row), reference.lengths[row] - chance.randrange(4))
            reference.go_on(row, begin, chance.randrange(1, 7), free)
        elif kind < 0.9:
            reference.draft(row, chance.randrange(1, reference.lengths[row] + 1))
        else:
            reference.copy(chance.choice(reference.tables[row]), BLOCKS + 1 + chance.randrange(HOST))
            reference.copy(BLOCKS + 1 + chance.randrange(HOST), chance.choice(free))
        reference.check()


def len_of_shared(reference: ReferenceKV, row: int) -> int:
    """Return a row's positions in blocks that others have, too: these are not written."""
    others = {block for other, table in reference.tables.items() if other != row for block in table}
    return SIZE * sum(block in others for block in reference.tables[row])


@pytest.mark.parametrize("kind", ["load", "receive"])
def test_blocks_from_elsewhere_have_nothing_of_the_drafters(kind: Literal["load", "receive"]) -> None:
    reference = ReferenceKV()
    reference.start(0, [3, 4, 5], 0, 40)
    reference.draft(0, 40)
    brought = Transfer(1, kind, "folder", (4,), (77,))
    stored = Transfer(2, "store", "folder", (3,), (78,))
    reference.kv.begin(BatchPlan(0, (), transfers=(brought, stored)), reference.batch)
    reference.there[4] = [False] * SIZE
    reference.check()


def test_rows_of_a_step_that_failed_are_nobodys() -> None:
    reference = ReferenceKV()
    reference.start(0, [3, 4], 0, 20)
    reference.start(1, [3, 5], 16, 4)
    reference.draft(0, 20)
    batch, plan = reference.batch, BatchPlan(0, (Chunk(0, 1, 20, 20, (6,), 1),))
    batch.discard([1])
    batch.update(plan.chunks)
    reference.kv.begin(plan, batch)
    reference.kv.note_computed(batch, 1, 40)
    assert reference.kv.num_computed(batch, 0, 20) == 20
    del reference.lengths[1]
    reference.start(1, [7], 0, 5)
    reference.check()
