"""Memory of an engine's blocks and of its checkpoints of recurrent state, as bytes of this machine."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from inflight.core.types.plan import Transfer


class BlockMemory(Struct, frozen=True):
    """Memory of blocks of one size.

    Attributes:
        memory: Of all blocks, one behind the other, to be read and written.
        block_bytes: Of each block.
    """

    memory: memoryview
    block_bytes: int

    @property
    def num_blocks(self) -> int:
        return len(self.memory) // self.block_bytes

    def split(self, blocks: int) -> tuple[BlockMemory, BlockMemory]:
        """Return the first so many blocks, and the others."""
        end = blocks * self.block_bytes
        return BlockMemory(self.memory[:end], self.block_bytes), BlockMemory(self.memory[end:], self.block_bytes)

    def views(self, blocks: Sequence[int], start: int = 0, end: int | None = None) -> list[memoryview]:
        """View each block, or its bytes from `start` to `end`. Raises IndexError for a block that does not exist."""
        size = self.block_bytes
        end = size if end is None else min(end, size)
        if any(not 0 <= block < self.num_blocks for block in blocks):
            raise IndexError(f"blocks are 0 to {self.num_blocks - 1}, and one of {list(blocks)[:8]} is not")
        return [self.memory[block * size + start : block * size + end] for block in blocks]


class KVMemory(Struct, frozen=True):
    """Memory that transfers with tiers and peers read and write.

    Attributes:
        blocks: Of all KV groups.
        state_group: Number of the recurrent state among groups, as in `Transfer`.
        states: Slots of checkpoints; None: the model has none.
    """

    blocks: BlockMemory
    state_group: int = 1
    states: BlockMemory | None = None

    def of(self, group: int) -> BlockMemory:
        """Return the memory of a group's blocks. Raises IndexError for a group that does not exist."""
        if 0 <= group < self.state_group:
            return self.blocks
        if group != self.state_group:
            raise IndexError(f"there is no group {group}")
        if self.states is None:
            raise IndexError("this model keeps no recurrent state")
        return self.states

    def views(self, transfer: Transfer) -> list[memoryview]:
        """View each block and checkpoint of a transfer. Raises IndexError for one that does not exist."""
        if not transfer.groups:
            return self.blocks.views(transfer.blocks)
        return [self.of(group).views([block])[0] for group, block in transfer.units()]
