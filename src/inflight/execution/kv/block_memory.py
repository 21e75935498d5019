"""The bytes of a device's blocks and of its checkpoints of recurrent state, in this machine's memory."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from inflight.core.types.plan import Transfer


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


class KVMemory(Struct, frozen=True):
    """Memory that transfers with tiers read and write.

    Attributes:
        blocks: Of all KV groups.
        state_group: Number of the recurrent state among groups, as in `Transfer`.
        states: Slots of checkpoints; None: the model has none.
    """

    blocks: BlockMemory
    state_group: int = 1
    states: BlockMemory | None = None

    def views(self, transfer: Transfer) -> list[memoryview]:
        """View each block and checkpoint of a transfer. Raises IndexError for one that does not exist."""
        if not transfer.groups:
            return self.blocks.views(transfer.blocks)
        return [self._of(group).views([block])[0] for group, block in transfer.units()]

    def _of(self, group: int) -> BlockMemory:
        if group != self.state_group:
            return self.blocks
        if self.states is None:
            raise IndexError("this model keeps no recurrent state")
        return self.states
