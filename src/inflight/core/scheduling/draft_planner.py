"""The draft planner: room for drafts in a step, behind what everything else takes of its budget and of the blocks.

Which decodes have drafts, `speculation` decides. Drafts take blocks that are free, with the watermark left, and of
those with content of the cache the one that the sequence would take with its next tokens anyway: in a pool that has
been used for a while none is free. No sequence is preempted for them.
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
        self._due: Collection[int] | None = ()  # of the step that is planned; None: all
        self._last_full = -1  # the last step that had no budget left for drafts

    def waits(self, step: int) -> bool:
        """Return whether the step is planned behind the result of the one before it."""
        return self._speculation.waits(step)

    def begin_step(self, step: int, ahead: bool) -> Collection[int]:
        """Begin to plan a step; return the sequences to leave out, so that the next step can draft for them.

        Args:
            step: Its number.
            ahead: Whether the step before it is still being computed.
        """
        self._due = due = self._speculation.due(step)
        if not ahead or not due or self._last_full == step - 1:  # a long prompt fills several steps
            return ()
        views = [SequenceView(one) for one in self._running.sequences if one.in_flight and one.number in due]
        return self._speculation.hold_back(step, views, len(self._running)) if views else ()

    def add(self, draft: StepDraft, now: float) -> None:
        """Add drafts to decodes whose next token no plan in flight samples. Background work is drafted for while no
        other runs, within the target of its steps."""
        due = self._due
        if (due is not None and not due) or not draft.chunks:
            return
        background = not any(lane.running for lane in self._lanes.in_turn(background=False))
        budget = self._budget(draft, background, now)
        if budget <= 0:
            self._last_full = draft.step
            return
        of = {one.number: one for one in draft.decodes if one.in_flight == 1 and (due is None or one.number in due)}
        new = {one.row for one in draft.new_requests}  # a decode may have been preempted, and have joined again
        indices = {
            chunk.sequence_id: index
            for index, chunk in enumerate(draft.chunks)
            if chunk.sequence_id in of and chunk.row not in new
        }
        if not indices:
            return
        reserved = self._reserved_blocks(background)
        candidates = [Candidate(SequenceView(of[number]), self._room(of[number], reserved)) for number in indices]
        allotted = self._speculation.allot(draft.step, draft.chunks, candidates, budget)
        for number, count, token_ids in sorted(allotted, key=lambda one: indices[one.number]):
            count = min(count, self._room(of[number], reserved))  # those before it have taken blocks
            if count > 0:
                self._take(draft, indices[number], of[number], count, token_ids[:count])

    def _reserved_blocks(self, background: bool) -> dict[str, int]:
        """Return the blocks that drafts must leave, by lane whose sequences may have drafts. background: whether no
        other work runs."""
        lanes = [lane for lane in self._lanes.all() if lane.running and (background or not lane.settings.background)]
        return {lane.settings.name: self._running.spare_for(lane) for lane in lanes}

    def _budget(self, draft: StepDraft, background: bool, now: float) -> int:
        """Return the tokens that are left of the step."""
        budget = draft.left(draft.budget, 0)
        if not background:
            return budget
        tokens = self._lanes.background_tokens((), draft.shape.token_budget)
        return min(budget, tokens - draft.shape.token_budget + draft.budget)

    def _take(self, draft: StepDraft, index: int, sequence: Sequence, count: int, token_ids: tuple[int, ...]) -> None:
        new_blocks = self._memory.allocate(sequence, sequence.num_computed + count)
        if new_blocks is None:  # the content of one is stored first, and that has begun
            return
        others: tuple[tuple[int, ...], ...] = ()
        if self._memory.has_windows:
            new_blocks, others = self._memory.new_blocks(sequence)
        draft.add_drafts(index, count, token_ids, new_blocks, others)
        sequence.draft(count)
        lane = self._lanes.of(sequence)
        lane.served(count)
        lane.deficit.take(count, sequence.protected)

    def _room(self, sequence: Sequence, reserved: Mapping[str, int]) -> int:
        """Return the drafts that a sequence may have, with a token behind them: those that its blocks hold, and others
        that are not reserved. None, where its blocks are wanted, its lane has no drafts, or its draws wait for their
        masks."""
        left = reserved.get(sequence.request.lane)
        if left is None or sequence.preempt_pending or sequence.slow_to_draw:
            return 0
        memory, next_ones = self._memory, len(sequence.block_tables)  # a block of each group
        spare = max(memory.num_free_blocks - left, min(next_ones, memory.num_available_blocks - left))
        held = memory.draft_room(sequence, max(0, spare))
        return min(held - sequence.num_computed, sequence.max_output_tokens - len(sequence.output) - 1)
