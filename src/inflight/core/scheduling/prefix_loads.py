"""Prefix loads: waiting sequences that are deferred while more of their prefix comes from a tier or a peer."""

from __future__ import annotations

from inflight.core.kv.manager import KVCacheManager
from inflight.core.queueing.lanes import Lane, Lanes
from inflight.core.request_timings import StepTime
from inflight.core.scheduling.running import Running
from inflight.core.sequence import Sequence
from inflight.core.types.timings import KV


class PrefixLoads:
    """Start loads for newcomers, and again for the head of a queue whose load lacked blocks when it came.

    A deferred sequence holds no row and no block, and blocks none behind it. Without sources nothing is ever loaded.
    """

    def __init__(self, memory: KVCacheManager, lanes: Lanes, running: Running, time: StepTime):
        self._memory, self._lanes, self._running, self._time = memory, lanes, running, time
        self._newcomers: list[Sequence] = []
        self._deferred: dict[int, list[Sequence]] = {}  # by transfer id

    @property
    def has_newcomers(self) -> bool:
        """Whether loads are to be started with the next plan."""
        return bool(self._newcomers)

    def arrived(self, sequence: Sequence) -> None:
        """Note that a sequence has joined its queue."""
        if self._memory.has_sources:
            self._newcomers.append(sequence)

    def rejoin(self) -> None:
        """Put sequences whose load has ended back into their queues."""
        if not self._memory.has_sources:
            return
        for transfer_id in self._memory.drain_loads(self._time.now):
            for sequence in self._deferred.pop(transfer_id, ()):
                lane = self._lanes.of(sequence)
                if lane.queue.deferred_for(sequence) == KV:
                    sequence.timings.unblock(KV, self._time.now, lane.clock, lane.settings.name)
                    lane.queue.push(sequence)

    def start_for_newcomers(self) -> None:
        """Start the loads of newcomers, with the plan under construction, before it takes blocks."""
        newcomers, self._newcomers = self._newcomers, []
        for sequence in newcomers:
            lane = self._lanes.of(sequence)
            if lane.queue.is_ready(sequence):
                self.start(sequence, lane, due=False)

    def start(self, sequence: Sequence, lane: Lane, due: bool = True) -> bool:
        """Load more of a waiting sequence's prefix, and defer it until then; return whether it is deferred.

        due: Its turn has come; otherwise others are before it.
        """
        if not self._memory.has_sources:
            return False
        transfer_id = self._memory.loading(sequence)
        if not transfer_id:
            spare = self._running.spare_blocks(lane)
            transfer_id = self._memory.start_load(sequence, spare, self._time.now, due)
        if not transfer_id:
            return False
        sequence.timings.block(self._time.now, lane.clock)
        lane.queue.defer(sequence, KV)
        self._deferred.setdefault(transfer_id, []).append(sequence)
        return True
