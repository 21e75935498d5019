"""Who holds the KV blocks: every block has one owner at a time: a sequence, several (shared), nobody but with content
(cached), or nobody at all.

Knows tables as plans extend them. Whether the content of a block that was given up is still findable, a record does
not say: full blocks count as cached until somebody takes them, which is the most that can be.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Container

from inflight.records.schema import StepRecord

SHARED = -1  # owner of blocks that several sequences hold
CACHED = -2  # of full blocks that nobody holds


class BlockHistory:
    def __init__(self, block_size: int, keeps_content: bool):
        """keeps_content: whether full blocks stay findable when their holder is gone (prefix caching)."""
        self.changes: list[tuple[float, int, int]] = []  # time, owner, blocks more (or fewer)
        self.allocated = 0  # blocks held, shared ones once
        self._size = block_size
        self._keeps_content = keeps_content
        self._tables: dict[int, list[int]] = {}
        self._computed: dict[int, int] = {}  # row → tokens with keys and values
        self._holders: dict[int, list[int]] = {}  # block → rows
        self._owner: dict[int, int] = {}  # block → sequence, SHARED or CACHED
        self._sequences: dict[int, int] = {}  # row → sequence

    @property
    def used_slots(self) -> int:
        """Token slots with keys and values, shared ones once: what several hold is full."""
        extra = sum(map(len, self._tables.values())) - self.allocated
        return sum(self._computed.values()) - extra * self._size

    def step(self, record: StepRecord, began: float, before: float) -> None:
        moved: Counter[int] = Counter()
        for row in record["freed_rows"]:
            self._give_up(row, moved)
        self._note(before, moved)
        moved = Counter()
        for chunk in record["chunks"]:
            row = chunk["row"]
            self._sequences[row] = chunk["sequence"]
            self._computed[row] = chunk["start"] + chunk["length"]
            for block in chunk["new_blocks"]:
                self._take(block, row, moved)
        self._note(began, moved)

    def finish(self, ended: Container[int], time: float) -> None:
        """The record is over: sequences that have ended hold nothing any more, which no plan after them could say."""
        moved: Counter[int] = Counter()
        for row, sequence in tuple(self._sequences.items()):
            if sequence in ended:
                self._give_up(row, moved)
        self._note(time, moved)

    def _take(self, block: int, row: int, moved: Counter[int]) -> None:
        self._tables.setdefault(row, []).append(block)
        holders = self._holders.setdefault(block, [])
        holders.append(row)
        if len(holders) == 1:
            self.allocated += 1
        self._own(block, self._sequences[row] if len(holders) == 1 else SHARED, moved)

    def _give_up(self, row: int, moved: Counter[int]) -> None:
        full = self._computed.pop(row, 0) // self._size
        self._sequences.pop(row, None)
        for place, block in enumerate(self._tables.pop(row, ())):
            holders = self._holders[block]
            holders.remove(row)
            if len(holders) == 1:
                self._own(block, self._sequences.get(holders[0]), moved)  # a damaged record gives a row a block twice
            elif not holders:
                self.allocated -= 1
                self._own(block, CACHED if self._keeps_content and place < full else None, moved)

    def _own(self, block: int, owner: int | None, moved: Counter[int]) -> None:
        before = self._owner.pop(block, None)
        if before is not None:
            moved[before] -= 1
        if owner is not None:
            self._owner[block] = owner
            moved[owner] += 1

    def _note(self, time: float, moved: Counter[int]) -> None:
        self.changes += [(time, owner, change) for owner, change in moved.items() if change]
