"""Which replica has which blocks of prompts in its cache, by what was sent there or what it reports.

Sent prompts are assumed to be cached until an engine would evict them as least recently used. Blocks are identified by
the hashes of engines' KV events (`core.types.kv_blocks`).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence

DEFAULT_MAX_BLOCKS = 1 << 18  # of a replica whose memory is not known


class PrefixIndex:
    """Blocks of prompts → replicas that have them, up to each one's capacity."""

    def __init__(self) -> None:
        self._replicas_of: dict[bytes, int] = {}  # block → replicas that have it, a bit each
        self._blocks: dict[int, OrderedDict[bytes, None]] = {}  # replica → its blocks, least recently used first
        self._max_blocks: dict[int, int] = {}

    def join(self, slot: int, max_blocks: int = DEFAULT_MAX_BLOCKS) -> None:
        """Add a replica. max_blocks: of its memory; beyond it the least recently used are assumed to be evicted."""
        self._blocks[slot], self._max_blocks[slot] = OrderedDict(), max_blocks

    def resize(self, slot: int, max_blocks: int) -> None:
        self._max_blocks[slot] = max_blocks
        self._shrink(slot)

    def leave(self, slot: int) -> None:
        self.clear(slot)
        del self._blocks[slot], self._max_blocks[slot]

    def match(self, blocks: Sequence[bytes]) -> dict[int, int]:
        """Return replica → number of leading blocks that it has, for those that have the first one."""
        found: dict[int, int] = {}
        depth, alive = 0, -1
        for depth, block in enumerate(blocks):
            still = alive & self._replicas_of.get(block, 0)
            if still != alive:
                if depth:
                    found.update(dict.fromkeys(_bits(alive & ~still), depth))
                if not still:
                    return found
            alive = still
        if blocks:
            found.update(dict.fromkeys(_bits(alive), depth + 1))
        return found

    def hold(self, slot: int, blocks: Sequence[bytes]) -> None:
        """Add the blocks of a prompt that it computes. The first ones count as used last, since an engine evicts the
        ends of chains first."""
        cached, bit = self._blocks[slot], 1 << slot
        for block in reversed(blocks):
            if block in cached:
                cached.move_to_end(block)
            else:
                cached[block] = None
                self._replicas_of[block] = self._replicas_of.get(block, 0) | bit
        self._shrink(slot)

    def drop(self, slot: int, blocks: Iterable[bytes]) -> None:
        """Remove blocks that it has evicted."""
        cached, bit = self._blocks[slot], 1 << slot
        for block in blocks:
            if block in cached:
                del cached[block]
                self._forget(block, bit)

    def clear(self, slot: int) -> None:
        self.drop(slot, tuple(self._blocks[slot]))

    def __len__(self) -> int:
        """Return the number of different blocks that any replica has."""
        return len(self._replicas_of)

    def _shrink(self, slot: int) -> None:
        cached, limit, bit = self._blocks[slot], self._max_blocks[slot], 1 << slot
        while len(cached) > limit:
            self._forget(cached.popitem(last=False)[0], bit)

    def _forget(self, block: bytes, bit: int) -> None:
        left = self._replicas_of[block] & ~bit
        if left:
            self._replicas_of[block] = left
        else:
            del self._replicas_of[block]


def _bits(mask: int) -> Iterable[int]:
    while mask:
        lowest = mask & -mask
        yield lowest.bit_length() - 1
        mask ^= lowest
