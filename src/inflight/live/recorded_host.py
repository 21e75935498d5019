"""Track the host tier of a record: the blocks copied there, and the preempted sequences that own them.

A record does not say when the host frees a block. It is assumed to happen when the block's sequence runs again or has
ended. If the host is a tier of the prefix cache, the block stays cached until it is overwritten.
"""

from __future__ import annotations

from collections.abc import Sequence

from inflight.live.block_map import tier_of
from inflight.live.frames import EVICTABLE, FREE, TierPart


class RecordedHost:
    def __init__(self, num_blocks: int, is_tier: bool):
        self._num_blocks, self._is_tier = num_blocks, is_tier
        self._owner: dict[int, int] = {}  # host block → preempted sequence, or EVICTABLE
        self._last: dict[int, int] = {}  # device block → preempted sequence that held it last
        self._preempted: set[int] = set()

    def __len__(self) -> int:
        return len(self._owner)

    def preempted(self, number: int, blocks: Sequence[int]) -> None:
        """Note that a sequence was preempted and lost these device blocks."""
        self._preempted.add(number)
        self._last.update(dict.fromkeys(blocks, number))

    def taken(self, blocks: Sequence[int]) -> None:
        """Note that device blocks were allocated."""
        for block in blocks:
            self._last.pop(block, None)

    def moved(self, out: Sequence[Sequence[int]], back: Sequence[Sequence[int]]) -> None:
        """Apply a plan's copies, before its allocations. out: device to host blocks; back: host to device blocks."""
        for block, host in out:
            if host < self._num_blocks:
                self._owner[host] = self._last.pop(block, EVICTABLE)
        for host, _ in back:
            self._owner.pop(host, None)

    def release(self, number: int) -> None:
        """Release the host blocks of a sequence that runs again or has ended."""
        if number not in self._preempted:
            return
        self._preempted.remove(number)
        mine = [host for host, owner in self._owner.items() if owner == number]
        for host in mine:
            if self._is_tier:
                self._owner[host] = EVICTABLE
            else:
                del self._owner[host]
        for block in [block for block, owner in self._last.items() if owner == number]:
            del self._last[block]

    def part(self) -> TierPart | None:
        """Return the tier as drawn; None: there is no host tier."""
        if not self._num_blocks:
            return None
        every = [FREE] * self._num_blocks
        for host, owner in self._owner.items():
            every[host] = owner
        return tier_of(every)
