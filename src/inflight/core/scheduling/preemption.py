"""Preemption for waiting sequences: which running ones make room, so that the head of a queue can join.

No sequence is preempted in vain, nor for one that can wait for more of its prefix, and no more than it takes. Until the
head has joined, its victims do not come back. (`Running` preempts for the next token of a running sequence.)
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from collections.abc import Sequence as Sequences

from inflight.core.kv.manager import KVCacheManager
from inflight.core.queueing.lanes import CHUNK, MAX_RESERVED_STEPS, Lane, Lanes
from inflight.core.scheduling.prefix_loads import PrefixLoads
from inflight.core.scheduling.running import Running
from inflight.core.sequence import Sequence, SequenceView
from inflight.core.strategies import StepShape


class Preemption:
    def __init__(self, memory: KVCacheManager, lanes: Lanes, running: Running, prefix_loads: PrefixLoads):
        self._memory, self._lanes, self._running, self._prefix_loads = memory, lanes, running, prefix_loads
        # Others were preempted for these, and they have not joined yet: of a foreground, and of a background lane.
        self._expected: Sequence | None = None
        self._overdue: Sequence | None = None

    def blocks_newcomers(self, lane: Lane) -> bool:
        """Return whether newcomers of a lane wait for a foreground sequence that others were preempted for.

        Where the victims' blocks are stored first, that takes some plans; a sequence that took the row meanwhile would
        be preempted again, and the two could alternate for ever. A row that the lane keeps is its own.
        """
        head = self._expected
        if head is None or head.finish is not None or not lane.settings.background:
            return False
        return not lane.deficit.reserved_rows and lane.running >= lane.settings.min_rows

    def made_room_for(self, sequence: Sequence) -> bool:
        """Return whether others were preempted for a sequence, so that it joins now, whatever more could be loaded."""
        return sequence is self._expected or sequence is self._overdue

    def joined(self, newcomer: Sequence) -> None:
        """Note that a sequence waits no longer."""
        if newcomer is self._expected:
            self._expected = None
        if newcomer is self._overdue:
            self._overdue = None

    def reserve_min_share(self, shape: StepShape, held_up: Iterable[Lane]) -> None:
        """Reserve tokens, rows and blocks of a step that are due to background lanes, before others are served.
        held_up: those with work that foreground work holds up."""
        for lane in self._lanes.in_turn(background=True):
            lane.deficit.cancel_reservation()
        for lane in held_up:
            deficit, max_rows = lane.deficit, lane.settings.max_rows
            own = [one for one in self._running.sequences if one.finish is None and self._lanes.of(one) is lane]
            if deficit.is_due:
                unprotected = next((one for one in own if not one.protected), None)
                if unprotected is not None:
                    unprotected.protected = True
                elif max_rows is None or lane.running < max_rows:
                    head = next(lane.queue.in_order(), None)
                    if head is not None:
                        deficit.reserve_row(self._memory.blocks_to_admit(head))
                        if deficit.reserved_steps > MAX_RESERVED_STEPS:
                            self._preempt_foreground(head, lane, shape)
            if not deficit.reserved_rows:
                deficit.reserved_steps = 0
            tokens = sum(one.protected and one.num_uncomputed == 1 for one in own)
            if deficit.reserved_rows or any(one.protected and one.num_uncomputed > 1 for one in own):
                tokens += max(CHUNK, int(deficit.tokens))
            deficit.reserved_tokens = min(tokens, self._lanes.min_share.max_tokens(shape.token_budget))

    def preempt_within_lanes(self, shape: StepShape) -> None:
        """Preempt sequences of foreground lanes for the head of their queue, where the policy allows it, before they
        have their tokens. (Background sequences have theirs later: `preempt_background`.)"""
        for lane in self._lanes.in_turn(background=False):
            head = next(lane.queue.in_order(), None) if lane.queue.preempts else None
            if head is lane.queue.first_late():
                continue  # none, or one behind all others: a victim would come before it again
            if head is not None and (tokens := self._tokens_for_prompts_of(lane, shape)) > 0:
                self._preempt_own_lane(head, lane, shape, tokens)

    def goes_before(self, waiting: Sequence, running: Sequence) -> bool:
        """Return whether a waiting sequence has prompt tokens before a running one of its lane."""
        lane = self._lanes.of(waiting)
        if self._lanes.of(running) is not lane:
            return False
        goes_before = lane.queue.policy.goes_before(SequenceView(waiting), SequenceView(running))
        return goes_before and lane.queue.rank(waiting) < lane.queue.rank(running)

    def preempt_background(self, head: Sequence, lane: Lane, shape: StepShape) -> bool:
        """Preempt background sequences, as few as possible; none, if even all would not make room.

        Returns:
            Whether the head can be admitted now.
        """
        if self._could_admit(head, lane, shape):
            return True
        victims = self._fewest(self._preemptible_for(head, lane, own_lane=False), head, lane, shape)
        return self._preempt(victims, head, lane)

    def _preempt_own_lane(self, head: Sequence, lane: Lane, shape: StepShape, tokens: int) -> None:
        """Preempt sequences of the head's own lane, too, where its policy allows it and background ones are not enough.

        tokens: What the lane's prompts may have in this step; those that go on are served before the head, but for
            those that it goes before.
        """
        if self._could_admit(head, lane, shape):
            return
        victims = self._fewest(self._preemptible_for(head, lane, own_lane=True), head, lane, shape)
        if any(self._lanes.of(victim) is lane for victim in victims):
            own = (one for one in self._running.sequences if self._lanes.of(one) is lane and one not in victims)
            prompts = (one for one in own if one.finish is None and one.num_uncomputed > 1)
            if tokens > sum(one.num_uncomputed for one in prompts if not self.goes_before(head, one)):
                self._preempt(victims, head, lane)

    def _preempt_foreground(self, head: Sequence, lane: Lane, shape: StepShape) -> None:
        """Preempt foreground sequences beyond the rows that their lanes keep, last in order first, for a background one
        that foreground newcomers have waited for."""
        if self._could_admit(head, lane, shape):
            return
        kept = {other.settings.name: other.settings.min_rows for other in self._lanes.all()}
        victims: list[Sequence] = []
        for one in self._running.sequences:
            if one.finish is None and not self._lanes.of(one).settings.background:
                kept[one.request.lane] -= 1
                if kept[one.request.lane] < 0:
                    victims.append(one)
        self._preempt(self._fewest(victims[::-1], head, lane, shape), head, lane)

    def _tokens_for_prompts_of(self, lane: Lane, shape: StepShape) -> int:
        """Return the tokens that decodes, and what other lanes keep, leave of the step."""
        decodes = sum(
            one.num_uncomputed == 1 and not self._lanes.of(one).settings.background for one in self._running.sequences
        )
        kept = sum(other.min_tokens for other in self._lanes.all() if other is not lane and other.busy)
        return shape.token_budget - decodes - kept

    def _preempt(self, victims: list[Sequence], head: Sequence, lane: Lane) -> bool:
        """Preempt all of these at once; while one is in flight, mark all, so that the next plan can.

        Returns:
            Whether they were preempted. Not where more of the head's prefix is loaded first.
        """
        if not victims or self._prefix_loads.start(head, lane):
            return False
        if any(victim.in_flight for victim in victims):
            for victim in victims:
                victim.preempt_pending = True
            return False
        for victim in victims:
            self._running.preempt(victim)
        if lane.settings.background:
            self._overdue = head
        else:
            self._expected = head
        return True

    def _fewest(self, victims: list[Sequence], head: Sequence, lane: Lane, shape: StepShape) -> list[Sequence]:
        """Return the first victims, as many as it takes for the head to join; none where even all are too few, or while
        blocks are being stored that may be enough."""
        if not victims or self._memory.is_storing or not self._could_admit(head, lane, shape, victims):
            return []

        def is_enough(count: int) -> bool:
            return self._could_admit(head, lane, shape, victims[:count])

        return victims[: bisect_left(range(len(victims)), True, lo=1, key=is_enough)]

    def _could_admit(self, head: Sequence, lane: Lane, shape: StepShape, without: Sequences[Sequence] = ()) -> bool:
        """Return whether there are a row and blocks for it, if some of the running sequences did not run."""
        if not self._running.has_row(lane, shape, without):
            return False
        return self._memory.can_admit(head, self._running.spare_blocks(lane, len(without)), without)

    def _preemptible_for(self, head: Sequence, lane: Lane, own_lane: bool) -> list[Sequence]:
        """Return the sequences that may be preempted, lowest ranks first: background ones beyond the rows that their
        lane keeps, and those of the own lane that the policy ranks behind (so that they would not be the next head)."""
        victims: list[Sequence] = []
        rank = lane.queue.rank(head)
        kept = {other.settings.name: other.settings.min_rows for other in self._lanes.all()}
        for victim in self._running.sequences:
            other = self._lanes.of(victim)
            if victim.finish is not None or victim.protected:
                continue
            if other is lane and own_lane:
                allowed = lane.queue.policy.may_preempt(SequenceView(head), SequenceView(victim))
                if allowed and rank < lane.queue.rank(victim):
                    victims.append(victim)
            elif other is not lane and other.settings.background:
                kept[other.settings.name] -= 1
                if kept[other.settings.name] < 0:
                    victims.append(victim)
        return victims[::-1]
