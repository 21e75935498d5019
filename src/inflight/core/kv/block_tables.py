"""Block tables: which blocks a sequence holds, of each KV group, from its admission to its end.

Knows tables and how they grow, slide and are given up; takes blocks from the pool, and gives them back to it. How long
a table is to be, `table_layout` knows; what content of its blocks others find, `prefix_sharing`. A table without a
window only grows; one with a window slides on as the sequence is computed: what is behind the windows of all queries to
come is given up, and as many blocks are taken for the prompt that is left.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence as Sequences
from itertools import zip_longest

from inflight.core.kv.block_pool import BlockPool
from inflight.core.kv.prefix_cache import CachedBlock, PrefixCache
from inflight.core.kv.swap_space import SwapSpace
from inflight.core.kv.table_layout import TableLayout
from inflight.core.sequence import Sequence

NO_BLOCKS: tuple[int, ...] = ()


class BlockTables:
    def __init__(self, layout: TableLayout, pool: BlockPool, prefix: PrefixCache, swap: SwapSpace):
        self._layout, self._has_windows, self._size = layout, layout.has_windows, layout.block_size
        self._pool, self._prefix, self._swap = pool, prefix, swap

    def begin(
        self, sequence: Sequence, found: Sequences[list[CachedBlock | None]], fresh: Sequences[int], size: int
    ) -> None:
        """Give it its tables. found: of each group, what the table begins with: cached blocks, which it holds already,
        and None for those behind the window; fresh: blocks beyond these. size: that one without a window would have."""
        sequence.block_tables = [
            [*self._blocks_of(places), *self._pool.allocate(count)] for places, count in zip(found, fresh, strict=True)
        ]
        sequence.blocks = sequence.block_tables[0]
        sequence.passed = [places.count(None) for places in found]
        sequence.told = [0] * len(found)
        sequence.table_size = size

    def release(self, sequence: Sequence) -> None:
        """Last block first, so that the ends of prefixes are evicted before their roots."""
        self._pool.release(reversed(self.blocks_of(sequence)), self._prefix.__contains__, sequence.session)
        sequence.blocks, sequence.block_tables, sequence.passed, sequence.told = [], [], [], []

    def blocks_of(self, sequence: Sequence) -> list[int]:
        """Return the blocks that a sequence holds, of all KV groups, in the order of their positions."""
        if not self._has_windows:
            return sequence.blocks
        nothing = self._layout.nothing
        columns = zip_longest(*sequence.block_tables, fillvalue=nothing)
        return [block for column in columns for block in column if block != nothing]

    def fewest_victims(self, sequences: Sequences[Sequence], blocks: int) -> list[Sequence]:
        """Return the first of these sequences whose preemption frees `blocks` blocks, without those that are not
        needed; an empty list where all of them free too few. Walks each table twice at most."""
        counts, alone, victims = Counter[int](), set[int](), list[Sequence]()
        for one in sequences:
            victims.append(one)
            held = self.blocks_of(one)
            counts.update(held)
            alone.update(block for block in held if counts[block] == self._pool.ref_count(block))
            if len(alone) >= blocks:
                break
        else:
            return []
        last = victims.pop()  # without it they were too few
        needed: list[Sequence] = []
        for one in victims:
            mine = alone.intersection(self.blocks_of(one))
            if len(alone) - len(mine) >= blocks:
                alone -= mine
            else:
                needed.append(one)
        return [*needed, last]

    def alone(self, sequences: Sequences[Sequence]) -> set[int]:
        """Blocks that these hold, and nobody else."""
        held = Counter(block for one in sequences for block in self.blocks_of(one))
        return {block for block, count in held.items() if self._pool.ref_count(block) == count}

    def used_slots(self, sequence: Sequence) -> int:
        """Slots of its blocks, of all groups, with keys and values."""
        return sum(sequence.num_computed - passed * self._size for passed in sequence.passed)

    def draft_room(self, sequence: Sequence, spare: int) -> int:
        """Return the tokens that a sequence's tables hold with `spare` more blocks."""
        tables = sequence.block_tables
        return (min(map(len, tables)) + spare // len(tables)) * self._size

    def num_missing_blocks(self, sequence: Sequence, tokens: int) -> int:
        """Return the blocks that others must free before `allocate` succeeds."""
        length = self._layout.blocks_for(tokens)
        return sum(max(0, length - len(table)) for table in sequence.block_tables) - self._pool.available

    def allocate(self, sequence: Sequence, tokens: int) -> tuple[int, ...] | None:
        """Extend a sequence's tables to hold `tokens` tokens; return the new blocks of the first group (`new_blocks`
        returns those of all groups). None, and no change, where too few blocks are available, or their content must be
        stored first; the store has begun then."""
        missing = -(-tokens // self._size) - len(sequence.blocks)
        if missing <= 0 and not self._has_windows:
            return NO_BLOCKS
        length = len(sequence.blocks) + missing
        of_each = [max(0, length - len(table)) for table in sequence.block_tables]
        in_all = sum(of_each)
        if not in_all:
            return NO_BLOCKS
        if in_all > self._pool.available or not self._swap.clears(in_all):
            return None
        for table, count in zip(sequence.block_tables, of_each, strict=True):
            table.extend(self._pool.allocate(count))
        return tuple(sequence.blocks[length - of_each[0] :])

    def new_blocks(self, sequence: Sequence) -> tuple[tuple[int, ...], tuple[tuple[int, ...], ...]]:
        """Return the blocks that no chunk has sent to the executor, and mark them as sent: `Chunk.new_blocks` and
        `Chunk.window_blocks`."""
        first, *others = (tuple(table[told:]) for table, told in zip(sequence.block_tables, sequence.told, strict=True))
        sequence.told = [len(table) for table in sequence.block_tables]
        return first, tuple(others) if any(others) else ()

    def slide_windows(self, sequence: Sequence) -> None:
        """Free the blocks behind the windows of all queries to come, and take as many for the rest of the prompt. The
        step under construction may overwrite freed blocks: the steps in flight are computed before it."""
        if sequence.num_drafts:
            return  # computed may be taken back
        for group, table in enumerate(sequence.block_tables):
            first = min(self._layout.first(group, sequence.num_computed), sequence.published)
            passed = sequence.passed[group]
            if first <= passed:
                continue
            self._pool.release(reversed(table[passed:first]), self._prefix.__contains__, sequence.session)
            table[passed:first] = [self._layout.nothing] * (first - passed)
            sequence.passed[group] = first
            more = min(self._layout.end(group, first, sequence.table_size) - len(table), self._pool.available)
            if more > 0 and self._swap.clears(more):
                table.extend(self._pool.allocate(more))

    def _blocks_of(self, places: list[CachedBlock | None]) -> list[int]:
        nothing = self._layout.nothing
        return [nothing if one is None or one.block is None else one.block for one in places]
