"""Which replica holds which blocks of prompts, as far as is known by what was sent there.

What was sent is taken to be cached for as long as an engine's least-recently-used blocks would hold it. Blocks have the
names by which engines tell of them (`engine.kv_events.block_hashes`).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence

MOST_BLOCKS = 1 << 18  # of a replica whose memory is not known


class PrefixIndex:
    def __init__(self) -> None:
        self._holders: dict[bytes, int] = {}  # block → replicas that hold it, a bit each
        self._held: dict[int, OrderedDict[bytes, None]] = {}  # replica → its blocks, those used longest ago first
        self._most: dict[int, int] = {}

    def join(self, slot: int, most_blocks: int = MOST_BLOCKS) -> None:
        """most_blocks: that its memory has; those used longest ago are taken to be gone beyond."""
        self._held[slot], self._most[slot] = OrderedDict(), most_blocks

    def resize(self, slot: int, most_blocks: int) -> None:
        self._most[slot] = most_blocks
        self._shrink(slot)

    def leave(self, slot: int) -> None:
        self.clear(slot)
        del self._held[slot], self._most[slot]

    def match(self, blocks: Sequence[bytes]) -> dict[int, int]:
        """Replica → leading blocks that it holds, of those that hold the first one."""
        found: dict[int, int] = {}
        depth, alive = 0, -1
        for depth, block in enumerate(blocks):
            still = alive & self._holders.get(block, 0)
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
        """It will have them: it computes a prompt of them. The beginning is used as lately as the end, and kept longer,
        since an engine gives the ends of chains away first."""
        held, bit = self._held[slot], 1 << slot
        for block in reversed(blocks):
            if block in held:
                held.move_to_end(block)
            else:
                held[block] = None
                self._holders[block] = self._holders.get(block, 0) | bit
        self._shrink(slot)

    def drop(self, slot: int, blocks: Iterable[bytes]) -> None:
        """It has them no more."""
        held, bit = self._held[slot], 1 << slot
        for block in blocks:
            if block in held:
                del held[block]
                self._forget(block, bit)

    def clear(self, slot: int) -> None:
        self.drop(slot, tuple(self._held[slot]))

    def __len__(self) -> int:
        """Blocks that somebody holds."""
        return len(self._holders)

    def _shrink(self, slot: int) -> None:
        held, most, bit = self._held[slot], self._most[slot], 1 << slot
        while len(held) > most:
            self._forget(held.popitem(last=False)[0], bit)

    def _forget(self, block: bytes, bit: int) -> None:
        left = self._holders[block] & ~bit
        if left:
            self._holders[block] = left
        else:
            del self._holders[block]


def _bits(mask: int) -> Iterable[int]:
    while mask:
        lowest = mask & -mask
        yield lowest.bit_length() - 1
        mask ^= lowest
