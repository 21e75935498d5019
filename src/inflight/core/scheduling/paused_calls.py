"""Paused calls: calls of programs that wait until they can leave the blocks of acting programs alone.

A program that acts (rests between an answer and its next call) has its blocks evicted by others' calls, and computes
them again. Where that would cost more than a program's waiting does (`kv.sessions`), the program that began later is
paused at its call (compare ThunderAgent, arXiv 2602.13692). The call blocks none behind it, holds no block, and the
first one is tried again in every plan. An answer that has begun is not paused, also where it was preempted.
"""

from __future__ import annotations

import heapq

from inflight.core.kv.manager import KVCacheManager
from inflight.core.queueing.lanes import Lane, Lanes
from inflight.core.request_timings import StepTime
from inflight.core.scheduling.running import Running
from inflight.core.sequence import Sequence

BLOCKS = "blocks"  # the reason, as of the head of a queue that lacks blocks


class PausedCalls:
    def __init__(self, memory: KVCacheManager, lanes: Lanes, running: Running, time: StepTime):
        self._memory, self._lanes, self._running, self._time = memory, lanes, running, time
        self._calls: dict[str, list[tuple[object, Sequence]]] = {}  # by lane, a heap by rank, which is unique

    def retry(self) -> None:
        """Put the first one of each lane back into its queue."""
        for calls in self._calls.values():
            while calls:
                _, sequence = heapq.heappop(calls)
                lane = self._lanes.of(sequence)
                if lane.queue.deferred_for(sequence) == BLOCKS:
                    sequence.timings.unblock(BLOCKS, self._time.now, lane.clock, lane.settings.name)
                    lane.queue.push(sequence)
                    break

    def is_to_wait(self, sequence: Sequence, lane: Lane) -> bool:
        """Return whether acting programs have a better use of the blocks that a call would take. Beside an idle engine
        none waits."""
        if not lane.queue.policy.orders_programs or not sequence.request.of_program or not len(self._running):
            return False
        if lane.settings.background or sequence.output:  # what it has reserved is its own; an answer that has begun
            return False
        return self._memory.displaces_acting(sequence, self._running.spare_blocks(lane))

    def pause(self, sequence: Sequence, lane: Lane) -> bool:
        """Pause a call that is next, if it is to wait; return whether it is paused."""
        if not self.is_to_wait(sequence, lane):
            return False
        sequence.timings.block(self._time.now, lane.clock)
        lane.queue.defer(sequence, BLOCKS)
        heapq.heappush(self._calls.setdefault(lane.settings.name, []), (lane.queue.rank(sequence), sequence))
        return True
