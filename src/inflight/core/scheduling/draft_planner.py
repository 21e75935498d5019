"""The draft planner: which decodes of a step have drafts, and how many.

Knows what everybody else has left of the step's budget and of the blocks; not who is worth a draft (`speculation`), nor
whether it was right (the executor). Drafts take blocks that are free, with the watermark left, and of those with
content of the cache the one that the sequence would take with its next tokens anyway: in a pool that has been used for
a while none is free. Nobody is pushed out for them.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from inflight.core.kv.manager import KVCacheManager
from inflight.core.queueing.lanes import Lanes
from inflight.core.scheduling.running import Running
from inflight.core.scheduling.step_draft import StepDraft
from inflight.core.sequence import Sequence, SequenceView
from inflight.core.speculation.speculation import Candidate, Speculation


class DraftPlanner:
    def __init__(self, speculation: Speculation, memory: KVCacheManager, lanes: Lanes, running: Running):
        self._speculation = speculation
        self._memory = memory
        self._lanes = lanes
        self._running = running
        self._turns: Collection[int] | None = ()
        self._full = -1  # the last step that had no room for drafts

    def waits(self, step: int) -> bool:
        """Whether the step is planned behind the result of the one before it."""
        return self._speculation.waits(step)

    def held_back(self, step: int, ahead: bool) -> Collection[int]:
        """Whose turn it is in this step, and numbers of the sequences that are not planned ahead: these are drafted for
        behind the result of what is in flight. ahead: the step before this one is still being computed."""
        self._turns = turns = self._speculation.turns(step, len(self._running), ahead)
        if not ahead or not turns or self._full == step - 1:  # a long prompt fills several steps
            return ()
        waiting = [one for one in self._running.sequences if one.in_flight and one.number in turns]
        return {one.number for one in waiting if self._speculation.holds(step, SequenceView(one))}

    def add(self, draft: StepDraft, now: float) -> None:
        """Each decode whose next token no plan in flight samples may have its part of what is left. Background work is
        drafted for while no other runs, within the target of its steps."""
        turns = self._turns
        if (turns is not None and not turns) or not draft.chunks:
            return
        background = not any(lane.running for lane in self._lanes.in_turn(background=False))
        budget = self._budget(draft, background, now)
        if budget <= 0:
            self._full = draft.step  # whoever's turn it is has it in the next step
            return
        of = {one.number: one for one in draft.decodes if one.in_flight == 1 and (turns is None or one.number in turns)}
        new = {one.row for one in draft.new_rows}  # a decode may have been preempted, and have joined again
        places = {
            chunk.sequence_id: place
            for place, chunk in enumerate(draft.chunks)
            if chunk.sequence_id in of and chunk.row not in new
        }
        if not places:
            return
        reserved = self._reserved_blocks(background)
        candidates = [Candidate(SequenceView(of[number]), self._room(of[number], reserved)) for number in places]
        allotted = self._speculation.allot(draft.step, draft.chunks, candidates, budget)
        for number, count, token_ids in sorted(allotted, key=lambda one: places[one.number]):
            count = min(count, self._room(of[number], reserved))  # those before it have taken blocks
            if count > 0:
                self._take(draft, places[number], of[number], count, token_ids[:count])

    def _reserved_blocks(self, background: bool) -> dict[str, int]:
        """Of the lanes whose sequences may have drafts, by name: blocks that these must leave. background: whether
        no other work runs."""
        lanes = [lane for lane in self._lanes.all() if lane.running and (background or not lane.settings.background)]
        return {lane.settings.name: self._running.spare_for(lane) for lane in lanes}

    def _budget(self, draft: StepDraft, background: bool, now: float) -> int:
        """Tokens that nobody else takes."""
        budget = draft.left(draft.budget, 0)
        if not background:
            return budget
        most = self._lanes.background_tokens((), draft.shape.token_budget, now)
        return min(budget, most - draft.shape.token_budget + draft.budget)

    def _take(self, draft: StepDraft, place: int, sequence: Sequence, count: int, token_ids: tuple[int, ...]) -> None:
        new_blocks = self._memory.tables.grow(sequence, sequence.num_computed + count)
        if new_blocks is None:  # the content of one is stored first, and that has begun
            return
        others: tuple[tuple[int, ...], ...] = ()
        if self._memory.has_windows:
            new_blocks, others = self._memory.tables.tell(sequence)
        draft.add_drafts(place, count, token_ids, new_blocks, others)
        sequence.draft(count)
        lane = self._lanes.of(sequence)
        lane.served(count)
        lane.owed.take(count, sequence.protected)

    def _room(self, sequence: Sequence, reserved: Mapping[str, int]) -> int:
        """Those that its blocks hold, and others that are not reserved, with a token behind them that it may have;
        none, where its blocks are wanted, its lane has no drafts, or its draws wait for their masks."""
        left = reserved.get(sequence.request.lane)
        if left is None or sequence.preempt_pending or sequence.slow_to_draw:
            return 0
        pool, next_ones = self._memory.pool, len(sequence.block_tables)  # a block of each group
        spare = max(pool.free - left, min(next_ones, pool.available - left))
        held = self._memory.tables.room(sequence, max(0, spare))
        return min(held - sequence.num_computed, sequence.most_output - len(sequence.output) - 1)
