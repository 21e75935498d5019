"""Block tables: the blocks that a running sequence holds, one table for each KV group.

A table without a window holds blocks for all tokens and only grows. A table with a window holds the blocks that the
window and the next chunk need; it slides on as the sequence is computed.

Allocation is `paged` (vLLM, arXiv 2309.06180): blocks for the known tokens at admission, and one more whenever a decode
crosses a block's end; `expected-peak` takes as many, and bounds who joins (`scheduling.expected_peak`). For comparison
with older systems there are `reserve-request` (for the longest output that the request allows) and `reserve-max` (for
the longest sequence that the model allows).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence as Sequences
from itertools import zip_longest
from typing import Literal

from inflight.core.kv.block_pool import BlockPool
from inflight.core.kv.host_tier import HostTier
from inflight.core.kv.prefix_cache import CachedBlock
from inflight.core.sequence import Sequence
from inflight.core.types.kv_blocks import first_seen, max_blocks, max_sequence_tokens, window_blocks
from inflight.core.types.plan import Capacity
from inflight.counted import counted, there_are

Allocation = Literal["paged", "expected-peak", "reserve-request", "reserve-max"]

NO_BLOCKS: tuple[int, ...] = ()


class TableLayout:
    def __init__(self, capacity: Capacity, allocation: Allocation, max_chunk_tokens: int):
        """Compute lengths for chunks of at most `max_chunk_tokens` tokens of one sequence."""
        self.block_size = capacity.block_size
        self.windows = capacity.windows
        self.has_windows = capacity.windows != (0,)
        self.null_block = capacity.num_blocks  # stands in a table for a block behind the window
        limit = capacity.max_model_len
        self.max_sequence_tokens = max_sequence_tokens(
            capacity.num_blocks, self.block_size, self.windows, max_chunk_tokens, limit
        )
        self._max_model_len = limit
        self._allocation = allocation
        self._max_chunk_tokens = max_chunk_tokens

    def max_blocks(self, tokens: int) -> int:
        """Return the blocks that a sequence of so many tokens holds at most, of all groups."""
        return max_blocks(tokens, self.block_size, self.windows, self._max_chunk_tokens)

    def blocks_at(self, tokens: int, more: Sequences[int]) -> list[int]:
        """Return the blocks that a sequence of so many tokens holds, of all groups, with so many more; at most."""
        if not self.has_windows:
            size, known = self.block_size, tokens + self.block_size - 1
            return [(known + one) // size for one in more]
        return [self.max_blocks(tokens + one) for one in more]

    def shortage(self, tokens: int) -> str | None:
        """Return the end of a sentence about a sequence that needs more blocks than there are; None where it fits."""
        if self.max_blocks(tokens) <= self.null_block:
            return None
        count, each = len(self.windows), self._blocks_for(tokens)
        groups = f" (at most {each:,} for each of {count} groups of layers)" if count > 1 else ""
        return (
            f"needs {counted(self.max_blocks(tokens), 'KV block')} of {self.block_size} tokens{groups}, but "
            f"{there_are(self.null_block)} in all: it has {counted(tokens, 'token')}, and there is room for "
            f"{self.max_sequence_tokens:,}"
        )

    def size(self, sequence: Sequence, to_the_end: bool) -> int:
        """Return the blocks of a table without a window at admission. to_the_end: for all tokens to come, too."""
        known = self._blocks_for(sequence.num_tokens)
        blocks = known
        if self._allocation == "reserve-max":
            blocks = self._blocks_for(self._max_model_len)
        elif to_the_end or self._allocation == "reserve-request":
            blocks = self._blocks_for(len(sequence.prompt) + sequence.max_output_tokens)
        # If the pool is smaller, the sequence runs alone, and ends when it has filled the pool.
        return min(max(blocks, known), self._blocks_for(self.max_sequence_tokens))

    def external_tokens(self, sequence: Sequence) -> int:
        """Return the tokens of whole blocks that came with the request; they are lost with the first preemption."""
        if sequence.recompute_until:
            return 0
        external = min(sequence.request.num_external_tokens, sequence.max_cached_tokens)
        return external // self.block_size * self.block_size

    def first_block(self, group: int, computed: int) -> int:
        """Return the index of the first block in a group's table that the query at position `computed` sees."""
        return first_seen(computed, self.windows[group]) // self.block_size

    def length(self, group: int, first: int, size: int) -> int:
        """Return the length of a group's table whose first visible block is `first`, of a sequence with `size`."""
        window = self.windows[group]
        if not window:
            return size
        return min(size, first + window_blocks(window, self._max_chunk_tokens, self.block_size))

    def _blocks_for(self, tokens: int) -> int:
        return -(-tokens // self.block_size)


class BlockTables:
    def __init__(self, layout: TableLayout, pool: BlockPool, host: HostTier):
        self._layout, self._has_windows, self._size = layout, layout.has_windows, layout.block_size
        self._pool, self._host = pool, host

    def begin(
        self, sequence: Sequence, found: Sequences[list[CachedBlock | None]], fresh: Sequences[int], size: int
    ) -> None:
        """Give a sequence its tables.

        Args:
            sequence: A sequence without blocks.
            found: Beginning of each table: cached blocks, which the sequence holds, and None for blocks behind the
                window.
            fresh: Blocks to allocate behind these, for each table.
            size: Blocks of a table without a window.
        """
        null = self._layout.null_block
        sequence.block_tables = [
            [
                *[null if cached is None or cached.block is None else cached.block for cached in blocks],
                *self._pool.allocate(count),
            ]
            for blocks, count in zip(found, fresh, strict=True)
        ]
        sequence.blocks = sequence.block_tables[0]
        sequence.num_freed_blocks = [blocks.count(None) for blocks in found]
        sequence.num_sent_blocks = [0] * len(found)
        sequence.table_size = size

    def release(self, sequence: Sequence, retired: range = range(0)) -> None:
        """Release a sequence's blocks, last block first, so that ends of prefixes are evicted before their roots.

        retired: Indices of blocks with content that nothing will look for.
        """
        blocks = self.blocks_of(sequence)
        if retired:
            self._pool.release(reversed(blocks[retired.stop :]), sequence.session)
            self._pool.retire(blocks[retired.start : retired.stop][::-1])
            blocks = blocks[: retired.start]
        self._pool.release(reversed(blocks), sequence.session)
        sequence.blocks, sequence.block_tables = [], []
        sequence.num_freed_blocks, sequence.num_sent_blocks = [], []

    def blocks_of(self, sequence: Sequence) -> list[int]:
        """Return the blocks that a sequence holds, of all groups, in the order of their positions."""
        if not self._has_windows:
            return sequence.blocks
        null = self._layout.null_block
        columns = zip_longest(*sequence.block_tables, fillvalue=null)
        return [block for column in columns for block in column if block != null]

    def exclusive_blocks(self, sequences: Sequences[Sequence]) -> set[int]:
        """Return the blocks that only these sequences hold."""
        held = Counter(block for one in sequences for block in self.blocks_of(one))
        return {block for block, count in held.items() if self._pool.ref_count(block) == count}

    def num_exclusive_blocks(self, sequence: Sequence) -> int:
        """Return how many blocks only this sequence holds."""
        return sum(self._pool.ref_count(block) == 1 for block in self.blocks_of(sequence))

    def fewest_victims(self, sequences: Sequences[Sequence], blocks: int) -> list[Sequence]:
        """Return the first of these sequences whose preemption frees `blocks` blocks, without those that are not
        needed; an empty list where all of them free too few. Walks each table twice at most."""
        counts, exclusive, victims = Counter[int](), set[int](), list[Sequence]()
        for one in sequences:
            victims.append(one)
            held = self.blocks_of(one)
            counts.update(held)
            exclusive.update(block for block in held if counts[block] == self._pool.ref_count(block))
            if len(exclusive) >= blocks:
                break
        else:
            return []
        last = victims.pop()  # without it they were too few
        needed: list[Sequence] = []
        for one in victims:
            own = exclusive.intersection(self.blocks_of(one))
            if len(exclusive) - len(own) >= blocks:
                exclusive -= own
            else:
                needed.append(one)
        return [*needed, last]

    def used_slots(self, sequence: Sequence) -> int:
        """Return the token slots of a sequence's blocks, of all groups, that have keys and values."""
        return sum(sequence.num_computed - freed * self._size for freed in sequence.num_freed_blocks)

    def draft_room(self, sequence: Sequence, spare: int) -> int:
        """Return the tokens that a sequence's tables hold with `spare` more blocks."""
        tables = sequence.block_tables
        return (min(map(len, tables)) + spare // len(tables)) * self._size

    def num_missing_blocks(self, sequence: Sequence, tokens: int) -> int:
        """Return the blocks that others must free before `allocate` succeeds."""
        length = -(-tokens // self._size)
        return sum(max(0, length - len(table)) for table in sequence.block_tables) - self._pool.available

    def can_allocate(self, sequence: Sequence, tokens: int) -> bool:
        """Return whether `allocate` has blocks now, with no content to be stored first."""
        missing = self.num_missing_blocks(sequence, tokens)
        return missing <= 0 and self._host.has_room(missing + self._pool.available)

    def allocate(self, sequence: Sequence, tokens: int) -> tuple[int, ...] | None:
        """Extend a sequence's tables to hold `tokens` tokens.

        Returns:
            The new blocks of the first group (`new_blocks` returns those of all groups). None, and no change, where too
            few blocks are available, or their content must be stored first; the store has begun then.
        """
        missing = -(-tokens // self._size) - len(sequence.blocks)
        if missing <= 0 and not self._has_windows:
            return NO_BLOCKS
        if not self._has_windows:
            if missing > self._pool.available or not self._host.make_room(missing):
                return None
            new_blocks = self._pool.allocate(missing)
            sequence.blocks.extend(new_blocks)  # its only table
            return new_blocks
        length = len(sequence.blocks) + missing
        counts = [max(0, length - len(table)) for table in sequence.block_tables]
        total = sum(counts)
        if not total:
            return NO_BLOCKS
        if total > self._pool.available or not self._host.make_room(total):
            return None
        for table, count in zip(sequence.block_tables, counts, strict=True):
            table.extend(self._pool.allocate(count))
        return tuple(sequence.blocks[length - counts[0] :])

    def new_blocks(self, sequence: Sequence) -> tuple[tuple[int, ...], tuple[tuple[int, ...], ...]]:
        """Return the blocks that no chunk has sent to the executor, and mark them as sent: `Chunk.new_blocks` and
        `Chunk.window_blocks`."""
        tables, sent = sequence.block_tables, sequence.num_sent_blocks
        first, *others = (tuple(table[count:]) for table, count in zip(tables, sent, strict=True))
        sequence.num_sent_blocks = [len(table) for table in tables]
        return first, tuple(others) if any(others) else ()

    def slide_windows(self, sequence: Sequence, position: int) -> None:
        """Free the blocks behind the windows of all queries from `position` on, and take as many for the rest of the
        prompt. The step under construction may overwrite freed blocks: the steps in flight are computed before it."""
        if sequence.num_drafts:
            return  # rejected drafts reduce num_computed
        for group, table in enumerate(sequence.block_tables):
            first = min(self._layout.first_block(group, position), sequence.num_published_blocks)
            freed = sequence.num_freed_blocks[group]
            if first <= freed:
                continue
            self._pool.release(reversed(table[freed:first]), sequence.session)
            table[freed:first] = [self._layout.null_block] * (first - freed)
            sequence.num_freed_blocks[group] = first
            more = min(self._layout.length(group, first, sequence.table_size) - len(table), self._pool.available)
            if more > 0 and self._host.make_room(more):
                table.extend(self._pool.allocate(more))
