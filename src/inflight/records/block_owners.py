"""Owners of KV blocks, from block tables as a record's plans extend them.

A block has one owner at a time: a sequence, several (SHARED), or none, with content (CACHED) or without. A record does
not say whether the content of a freed block can still be found: full blocks count as cached until they are allocated
again, which is the upper bound. Nor does it say when blocks behind a window are freed: they count as freed as soon as
possible.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from inflight.records.drafts import rejected
from inflight.records.schema import StepRecord

SHARED = -1  # owner of blocks of several sequences
CACHED = -2  # owner of full blocks without a reference
Moved = Counter[int]  # owner → blocks more (or fewer)


class BlockOwners:
    """Owners of all blocks after the steps so far."""

    def __init__(self, block_size: int, keeps_content: bool, windows: Sequence[int] = (0,), nothing: int | None = None):
        """Begin without blocks.

        Args:
            block_size: Tokens of a block.
            keeps_content: Whether the content of freed full blocks can be found (prefix caching).
            windows: Window of each KV group in tokens; 0: none.
            nothing: Block id that stands for a block behind the window.
        """
        self.owner: dict[int, int] = {}  # block → sequence, SHARED or CACHED
        self.allocated = 0  # blocks with a reference, shared ones once
        self._size = block_size
        self._keeps_content = keeps_content
        self._windows = windows
        self._nothing = nothing if any(windows) else None
        self._tables: dict[int, list[list[int]]] = {}  # row → block table of each group
        self._passed: dict[int, list[int]] = {}  # row → leading entries of each without a block
        self._computed: dict[int, int] = {}  # row → tokens with keys and values
        self._rows_of: dict[int, list[int]] = {}  # block → rows
        self._sequences: dict[int, int] = {}  # row → sequence

    @property
    def used_slots(self) -> int:
        """Token slots with keys and values, shared ones once: shared blocks are full."""
        held = used = 0
        for row, tables in self._tables.items():
            for table, passed in zip(tables, self._passed[row], strict=True):
                held += len(table) - passed
                used += self._computed.get(row, 0) - passed * self._size
        return used - (held - self.allocated) * self._size

    @property
    def sequences(self) -> dict[int, int]:
        """Row → its sequence."""
        return dict(self._sequences)

    def held(self, row: int) -> list[int]:
        tables, passed = self._tables.get(row, ()), self._passed.get(row, ())
        return [block for table, first in zip(tables, passed, strict=True) for block in table[first:]]

    def computed(self, row: int) -> int:
        """Return the tokens of a row with keys and values."""
        return self._computed.get(row, 0)

    def free(self, record: StepRecord) -> Moved:
        """Free blocks before a step, and return the changes."""
        moved: Moved = Counter()
        for row in record.plan.freed_rows:
            self.free_row(row, moved)
        if any(self._windows):
            for row in self._tables:
                self._slide(row, moved)
        return moved

    def allocate(self, record: StepRecord) -> Moved:
        """Allocate the blocks of a step's chunks, after `free`, and return the changes."""
        moved: Moved = Counter()
        wrong = rejected(record)
        for chunk in record.plan.chunks:
            row = chunk.row
            self._sequences[row] = chunk.sequence_id
            self._computed[row] = chunk.start + chunk.length - wrong.get(chunk.sequence_id, 0)
            if chunk.new_blocks or chunk.window_blocks or row not in self._tables:
                self._extend(row, (chunk.new_blocks, *chunk.window_blocks), moved)
        return moved

    def free_row(self, row: int, moved: Moved) -> None:
        """Free the blocks of a row, and add the changes."""
        full = self._computed.pop(row, 0) // self._size
        self._sequences.pop(row, None)
        for table, passed in zip(self._tables.pop(row, ()), self._passed.pop(row, ()), strict=True):
            for index, block in enumerate(table[passed:], passed):
                self._release(block, row, self._keeps_content and index < full, moved)

    def _extend(self, row: int, new: Sequence[Sequence[int]], moved: Moved) -> None:
        """Extend the tables of a row by the new blocks of each group."""
        tables = self._tables.setdefault(row, [[] for _ in self._windows])
        passed = self._passed.setdefault(row, [0] * len(tables))
        for group, (table, blocks) in enumerate(zip(tables, new, strict=False)):
            table.extend(blocks)
            for block in blocks:
                if block == self._nothing:
                    passed[group] += 1
                else:
                    self._take(block, row, moved)

    def _slide(self, row: int, moved: Moved) -> None:
        for group, window in enumerate(self._windows):
            table, passed = self._tables[row][group], self._passed[row][group]
            first = min(len(table), max(0, self._computed.get(row, 0) - window + 1) // self._size) if window else 0
            for block in table[passed:first]:
                self._release(block, row, self._keeps_content, moved)
            self._passed[row][group] = max(passed, first)

    def _take(self, block: int, row: int, moved: Moved) -> None:
        rows = self._rows_of.setdefault(block, [])
        rows.append(row)
        if len(rows) == 1:
            self.allocated += 1
        self._own(block, self._sequences[row] if len(rows) == 1 else SHARED, moved)

    def _release(self, block: int, row: int, keeps_content: bool, moved: Moved) -> None:
        rows = self._rows_of[block]
        rows.remove(row)
        if len(rows) == 1:
            self._own(block, self._sequences.get(rows[0]), moved)  # in a damaged record a row may have a block twice
        elif not rows:
            self.allocated -= 1
            self._own(block, CACHED if keeps_content else None, moved)

    def _own(self, block: int, owner: int | None, moved: Moved) -> None:
        before = self.owner.pop(block, None)
        if before is not None:
            moved[before] -= 1
        if owner is not None:
            self.owner[block] = owner
            moved[owner] += 1
