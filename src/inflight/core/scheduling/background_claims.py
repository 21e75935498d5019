"""What background lanes claim of a step before anybody else is served: their floor, as tokens, a row and blocks.

Knows what each lane is owed (`queueing.floor`), and which of its sequences are kept; writes what it reserves into the
lanes' accounts. Does not hand out anything: the step builder leaves room for what is written there.
"""

from __future__ import annotations

from inflight.core.kv.manager import KVCacheManager
from inflight.core.queueing.floor import CHUNK
from inflight.core.queueing.lanes import Lane, Lanes
from inflight.core.scheduling.admission_preemption import AdmissionPreemption
from inflight.core.scheduling.running import Running
from inflight.core.strategies import StepShape


class BackgroundClaims:
    def __init__(self, memory: KVCacheManager, lanes: Lanes, running: Running, preemption: AdmissionPreemption):
        self._memory, self._lanes, self._running, self._preemption = memory, lanes, running, preemption

    def reserve(self, shape: StepShape, now: float) -> None:
        """What background lanes are owed of this step is theirs before anybody else is served."""
        for lane in self._lanes.in_turn(background=True):
            lane.owed.reserve()
        for lane in self._lanes.held_up():
            own = [one for one in self._running.sequences if one.finish is None and self._lanes.of(one) is lane]
            claims = False
            if lane.owed.is_due:
                fresh = next((one for one in own if not one.protected), None)
                if fresh is not None:
                    fresh.protected = True
                else:
                    claims = self._claim(lane, shape, now)
            decodes = sum(one.protected and one.num_uncomputed == 1 for one in own)
            if claims or any(one.protected and one.num_uncomputed > 1 for one in own):
                decodes += max(CHUNK, int(lane.owed.credit))
            lane.owed.tokens = min(decodes, self._lanes.floor.most(shape.token_budget))

    def _claim(self, lane: Lane, shape: StepShape, now: float) -> bool:
        """The first in the lane's queue has the next row and blocks; those of foreground work, if it was owed them for
        long, and those that are served before it leave it a token."""
        head = next(lane.queue.in_order(now), None)
        if head is None or not self._lanes.may_grow(lane):
            return False
        lane.owed.rows, lane.owed.blocks = 1, self._memory.needs(head)
        before = sum(
            one.num_uncomputed
            for one in self._running.sequences
            if (one.num_uncomputed == 1 and self._lanes.of(one).settings.background) or self._lanes.of(one) is lane
        )
        if lane.owed.is_overdue and before < self._lanes.floor.most(shape.token_budget):
            self._preemption.preempt_foreground_for(head, lane, shape, now)
        return True
