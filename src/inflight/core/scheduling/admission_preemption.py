"""Preemption for those that wait: who gives way so that the first in a queue can join.

Knows lanes' floors, ranks and policies, and asks whether it would help: nobody is preempted in vain, nor for one that
can stand apart until more of its prefix has come, and no more than it takes; and until the one that they gave way to
has joined, they do not come back. Who gives way to the next token of somebody that runs, `running` knows; what becomes
of a victim's blocks, `preemption`.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence as Sequences

from inflight.core.kv.manager import KVCacheManager
from inflight.core.queueing.lanes import Lane, Lanes
from inflight.core.scheduling.prefix_fetching import PrefixFetching
from inflight.core.scheduling.running import Running
from inflight.core.sequence import Sequence, SequenceView
from inflight.core.strategies import StepShape


class AdmissionPreemption:
    def __init__(self, memory: KVCacheManager, lanes: Lanes, running: Running, fetching: PrefixFetching | None):
        self._memory, self._lanes, self._running, self._fetching = memory, lanes, running, fetching
        self._expected: Sequence | None = None  # of a foreground lane: others gave way to it, and it has not joined yet

    def keeps_back(self, lane: Lane) -> bool:
        """Whether a newcomer of this lane waits until the one has joined that others gave way to. Where their blocks
        are stored first, that takes some plans; whoever took the place meanwhile would be pushed out of it again, and
        the two could go on like that for ever. A row that the lane keeps is its own."""
        head = self._expected
        if head is None or head.finish is not None or not lane.settings.background:
            return False
        return not lane.deficit.reserved_rows and lane.running >= lane.settings.min_rows

    def joined(self, newcomer: Sequence) -> None:
        """It waits no longer."""
        if newcomer is self._expected:
            self._expected = None

    def gave_way_to(self, sequence: Sequence) -> bool:
        """Whether others did, for the place that it is to take now: it stands apart no more."""
        return sequence is self._expected

    def preempt_background(self, head: Sequence, lane: Lane, shape: StepShape, now: float) -> bool:
        """Preempt background sequences until the head could join; nobody, if even all of them would not help."""
        if self._could_admit(head, lane, shape):
            return True
        victims = self._preemptible_for(head, lane, now, own_lane=False)
        return self._preempt(self._fewest(victims, head, lane, shape), head, lane, now)

    def preempt_for(self, head: Sequence, lane: Lane, shape: StepShape, now: float, tokens: int) -> None:
        """The same with those of its own lane that it may push out, where background ones are not enough. tokens: that
        the lane's prompts may have in this step; those that go on are served before the head."""
        if self._could_admit(head, lane, shape):
            return
        victims = self._fewest(self._preemptible_for(head, lane, now, own_lane=True), head, lane, shape)
        if any(self._lanes.of(victim) is lane for victim in victims):
            own = (one for one in self._running.sequences if self._lanes.of(one) is lane and one not in victims)
            if tokens > sum(one.num_uncomputed for one in own if one.finish is None and one.num_uncomputed > 1):
                self._preempt(victims, head, lane, now)

    def _fewest(self, victims: list[Sequence], head: Sequence, lane: Lane, shape: StepShape) -> list[Sequence]:
        """The first of these, as many as must give way for the head to join; none, if even all would not help, or while
        blocks are being stored that may be enough."""
        if not victims or self._memory.is_storing or not self._could_admit(head, lane, shape, victims):
            return []

        def is_enough(count: int) -> bool:
            return self._could_admit(head, lane, shape, victims[:count])

        return victims[: bisect_left(range(len(victims)), True, lo=1, key=is_enough)]

    def _preempt(self, victims: list[Sequence], head: Sequence, lane: Lane, now: float) -> bool:
        """All at once: whoever is in flight computes nothing more, and can be preempted in the next plan; nobody goes
        before, since until then the head may have its place without. A head of a foreground lane is to join before
        newcomers of background lanes do."""
        if not victims or (self._fetching is not None and self._fetching.fetches(head, lane, now)):
            return False
        if any(victim.in_flight for victim in victims):
            for victim in victims:
                victim.preempt_pending = True
            return False
        for victim in victims:
            self._running.preempt(victim, now)
        self._expected = head
        return True

    def _could_admit(self, head: Sequence, lane: Lane, shape: StepShape, without: Sequences[Sequence] = ()) -> bool:
        """Whether there are a row and blocks for it; at best, if some of those that run did not."""
        if not self._running.has_row(lane, shape, without):
            return False
        return self._memory.can_admit(head, self._running.spare_for(lane, len(without)), without)

    def _preemptible_for(self, head: Sequence, lane: Lane, now: float, own_lane: bool) -> list[Sequence]:
        """Lowest ranks first: background sequences beyond those that their lane keeps, then those of the own lane that
        the policy puts clearly behind (and that would not be the first to come back)."""
        victims: list[Sequence] = []
        rank = lane.queue.rank(head, now)
        kept = {other.settings.name: other.settings.min_rows for other in self._lanes.all()}
        for victim in self._running.sequences:
            other = self._lanes.of(victim)
            if victim.finish is not None or victim.protected:
                continue
            if other is lane and own_lane:
                may = lane.queue.policy.may_preempt(SequenceView(head), SequenceView(victim))
                if may and rank < lane.queue.rank(victim, now):
                    victims.append(victim)
            elif other is not lane and other.settings.background:
                kept[other.settings.name] -= 1
                if kept[other.settings.name] < 0:
                    victims.append(victim)
        return victims[::-1]
