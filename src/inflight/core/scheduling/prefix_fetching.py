"""Fetching prefixes: who of the waiting stands apart until more of its prefix is there, and joins its queue again.

Knows queues and the accounts of waiting; what is brought, and whether, `kv.connector` knows. A newcomer's is asked
for when it comes, while others are still before it; whoever then lacked the blocks for it asks again when its turn
comes. Whoever stands apart holds no row and no block, and nobody behind it waits for it.
"""

from __future__ import annotations

from inflight.core.kv.manager import KVCacheManager
from inflight.core.queueing.lanes import Lane, Lanes
from inflight.core.scheduling.running import Running
from inflight.core.sequence import Sequence
from inflight.core.types.timings import KV


class PrefixFetching:
    def __init__(self, memory: KVCacheManager, lanes: Lanes, running: Running):
        self._memory, self._lanes, self._running = memory, lanes, running
        self._newcomers: list[Sequence] = []
        self._apart: dict[int, list[Sequence]] = {}  # by transfer_id

    def arrived(self, sequence: Sequence) -> None:
        """It has joined its queue."""
        self._newcomers.append(sequence)

    def rejoin(self, now: float) -> None:
        """Whoever waited for a transfer that has ended joins its queue: before anybody looks how many wait there."""
        for transfer_id in self._memory.drain_loads(now):
            for sequence in self._apart.pop(transfer_id, ()):
                lane = self._lanes.of(sequence)
                if lane.queue.lacks(sequence) == KV:
                    sequence.timings.unblock(KV, now, lane.clock, lane.settings.name)
                    lane.queue.push(sequence, now)

    def begin(self, now: float) -> None:
        """Newcomers' prefixes begin to be brought, with the plan under construction."""
        newcomers, self._newcomers = self._newcomers, []
        for sequence in newcomers:
            lane = self._lanes.of(sequence)
            if lane.queue.is_ready(sequence):
                self.fetches(sequence, lane, now, is_due=False)

    def fetches(self, sequence: Sequence, lane: Lane, now: float, is_due: bool = True) -> bool:
        """Whether a waiting sequence stands apart from now on, since more of its prefix is brought. is_due: its turn
        has come."""
        transfer_id = self._memory.loading(sequence)
        if not transfer_id:
            transfer_id = self._memory.start_load(sequence, self._running.spare_for(lane), now, is_due)
        if not transfer_id:
            return False
        sequence.timings.block(now, lane.clock)
        lane.queue.defer(sequence, KV)
        self._apart.setdefault(transfer_id, []).append(sequence)
        return True
