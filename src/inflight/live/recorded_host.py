"""What lies on the host at each time of a record: whose blocks were copied there, and who comes back for them.

Knows blocks as plans move them. What a record does not tell, that content was given up there, is taken to have happened
when nobody can want it any more: its sequence has a row again, or has ended. Where the host is a tier of the prefix
cache it is then kept, until somebody else's takes its place.
"""

from __future__ import annotations

from collections.abc import Sequence

from inflight.live.block_map import tier_of
from inflight.live.frames import EVICTABLE, FREE, TierPart


class RecordedHost:
    def __init__(self, num_blocks: int, is_tier: bool):
        self._num_blocks, self._is_tier = num_blocks, is_tier
        self._owner: dict[int, int] = {}  # host block → sequence that comes back for it, or EVICTABLE
        self._last: dict[int, int] = {}  # device block → who of the preempted held it last
        self._away: set[int] = set()  # who was preempted, and may come back

    def __len__(self) -> int:
        return len(self._owner)

    def preempted(self, number: int, blocks: Sequence[int]) -> None:
        """It gave up its row and these device blocks, and comes back."""
        self._away.add(number)
        self._last.update(dict.fromkeys(blocks, number))

    def taken(self, blocks: Sequence[int]) -> None:
        """Device blocks that somebody holds now."""
        for block in blocks:
            self._last.pop(block, None)

    def moved(self, out: Sequence[Sequence[int]], back: Sequence[Sequence[int]]) -> None:
        """As a plan moves them; before it gives the device blocks to others."""
        for block, host in out:
            if host < self._num_blocks:
                self._owner[host] = self._last.pop(block, EVICTABLE)
        for host, _ in back:
            self._owner.pop(host, None)

    def wants_no_more(self, number: int) -> None:
        """It has a row, or has ended."""
        if number not in self._away:
            return
        self._away.remove(number)
        mine = [host for host, owner in self._owner.items() if owner == number]
        for host in mine:
            if self._is_tier:
                self._owner[host] = EVICTABLE
            else:
                del self._owner[host]
        for block in [block for block, owner in self._last.items() if owner == number]:
            del self._last[block]

    def part(self) -> TierPart | None:
        """None: there is no host."""
        if not self._num_blocks:
            return None
        every = [FREE] * self._num_blocks
        for host, owner in self._owner.items():
            every[host] = owner
        return tier_of(every)
