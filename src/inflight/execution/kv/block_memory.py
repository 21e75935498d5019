"""The bytes of a KV cache's blocks, where they lie in this machine's memory. Knows sizes; not what is in them."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct


class BlockMemory(Struct, frozen=True):
    """memory: of all blocks, one behind the other, to be read and written."""

    memory: memoryview
    block_bytes: int

    def views(self, blocks: Sequence[int], start: int = 0, end: int | None = None) -> list[memoryview]:
        """View each block, or its bytes from `start` to `end`. Raises IndexError for a block that does not exist."""
        size = self.block_bytes
        end = size if end is None else min(end, size)
        if any(not 0 <= block < len(self.memory) // size for block in blocks):
            raise IndexError(f"blocks are 0 to {len(self.memory) // size - 1}, and one of {list(blocks)[:8]} is not")
        return [self.memory[block * size + start : block * size + end] for block in blocks]
