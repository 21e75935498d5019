"""How long a sequence's block tables are: arithmetic over the capacity, the windows of KV groups, and the allocation.

Knows lengths and positions; no blocks, and not what is in them. Of several KV groups (`core.types.kv_blocks`) a
sequence has a table each. One without a window has blocks for all its tokens; one with a window has those that the
window and the next chunk need. Allocation is `paged` (vLLM, arXiv 2309.06180): blocks for the known tokens at
admission, one more whenever a decode crosses a block's end; or, as older systems do and for comparison,
`reserve-request` (for the longest output that the request allows) and `reserve-max` (for the longest sequence that the
model allows).
"""

from __future__ import annotations

from typing import Literal

from inflight.core.sequence import Sequence
from inflight.core.types.kv_blocks import first_seen, max_blocks, max_sequence_tokens, window_blocks
from inflight.core.types.plan import Capacity
from inflight.counted import counted, there_are

Allocation = Literal["paged", "reserve-request", "reserve-max"]


class TableLayout:
    def __init__(self, capacity: Capacity, allocation: Allocation, longest_chunk: int):
        """longest_chunk: tokens of one sequence that a step computes at most."""
        self.block_size = capacity.block_size
        self.windows = capacity.windows
        self.has_windows = capacity.windows != (0,)  # of one group without, all is as it is without groups
        self.nothing = capacity.num_blocks  # in a table, in the place of a block that is behind the window
        limit = capacity.max_model_len
        self.max_sequence_tokens = max_sequence_tokens(
            capacity.num_blocks, self.block_size, self.windows, longest_chunk, limit
        )
        self._max_model_len = limit
        self._allocation = allocation
        self._longest_chunk = longest_chunk

    def blocks_for(self, tokens: int) -> int:
        """Of one table without a window."""
        return -(-tokens // self.block_size)

    def max_blocks(self, tokens: int) -> int:
        """That a sequence of so many tokens holds at most, of all groups."""
        return max_blocks(tokens, self.block_size, self.windows, self._longest_chunk)

    def shortage(self, tokens: int) -> str | None:
        """Return the end of a sentence about a sequence of so many tokens that does not fit into all blocks; None where
        it does."""
        if self.max_blocks(tokens) <= self.nothing:
            return None
        count, each = len(self.windows), self.blocks_for(tokens)
        groups = f" (at most {each:,} for each of {count} groups of layers)" if count > 1 else ""
        return (
            f"needs {counted(self.max_blocks(tokens), 'KV block')} of {self.block_size} tokens{groups}, but "
            f"{there_are(self.nothing)} in all: it has {counted(tokens, 'token')}, and there is room for "
            f"{self.max_sequence_tokens:,}"
        )

    def size(self, sequence: Sequence, to_the_end: bool) -> int:
        """Blocks of a table without a window at admission. to_the_end: for all tokens that it may ever have."""
        blocks = self.blocks_for(sequence.num_tokens)
        if self._allocation == "reserve-max":
            blocks = self.blocks_for(self._max_model_len)
        elif to_the_end or self._allocation == "reserve-request":
            blocks = self.blocks_for(len(sequence.prompt) + sequence.max_output_tokens)
        # All there is, if that is less: the sequence then runs alone, and ends when it has filled it.
        return min(max(blocks, self.blocks_for(sequence.num_tokens)), self.blocks_for(self.max_sequence_tokens))

    def handed(self, sequence: Sequence) -> int:
        """Tokens in whole blocks that came with the request; they are in its blocks until it is preempted."""
        handed = (
            0 if sequence.recompute_until else min(sequence.request.num_external_tokens, sequence.max_cached_tokens)
        )
        return handed // self.block_size * self.block_size

    def first(self, group: int, computed: int) -> int:
        """The first block of a group's table that the query at position `computed` sees."""
        return first_seen(computed, self.windows[group]) // self.block_size

    def end(self, group: int, first: int, size: int) -> int:
        """How far a group's table reaches whose first block that is seen is that one, of a sequence with `size`."""
        window = self.windows[group]
        return min(size, first + window_blocks(window, self._longest_chunk, self.block_size)) if window else size
