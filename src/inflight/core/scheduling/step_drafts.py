"""The drafts of a step: which decodes have some, of what the step has left."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from inflight.core.scheduling.state import SchedulerState
from inflight.core.scheduling.step import Step
from inflight.core.sequence import Sequence, SequenceView
from inflight.core.speculation.speculation import DraftCandidate


class StepDrafts:
    def __init__(self, state: SchedulerState, step: Step):
        """step: Under construction."""
        self._state, self._step = state, step
        # In a batch that runs to completion drafts would lengthen the padding of all rows.
        self._speculation = None if state.running.run_to_completion else state.speculation
        self._due: Collection[int] | None = ()  # sequences that may have drafts; None: all

    @property
    def waits(self) -> bool:
        """Whether the step waits for the end of the one before it, so that more sequences may have drafts."""
        return self._speculation is not None and self._speculation.waits(self._step.number)

    def hold_back(self, ahead: bool) -> Collection[int]:
        """Return the sequences to leave out of a step, so that the next one can draft for them. ahead: the step is
        planned while the one before it is computed."""
        if self._speculation is None:
            return ()
        number = self._step.number
        self._due = due = self._speculation.due(number)
        if not ahead or not due or self._state.last_full_step == number - 1:  # a long prompt fills several steps
            return ()
        views = [SequenceView(one) for one in self._state.running.sequences if one.in_flight and one.number in due]
        return self._speculation.hold_back(number, views, len(self._state.running)) if views else ()

    def add(self, decodes: Iterable[Sequence]) -> None:
        """Add drafts to decodes whose next token no earlier plan samples, of what the step has left.

        No sequence is preempted for drafts. Background work is drafted for while no other runs.
        """
        step, shape, due, lanes = self._step, self._step.shape, self._due, self._state.lanes
        if self._speculation is None or (due is not None and not due) or not step.chunks:
            return
        background = not any(lane.running for lane in lanes.in_turn(background=False))
        budget = step.prompt_budget(step.budget, 0, 0)
        if budget <= 0:
            self._state.last_full_step = step.number
            return
        due = shape.behind.intersection(due or shape.behind) if shape.behind else due
        of = {one.number: one for one in decodes if one.in_flight == 1 and (due is None or one.number in due)}
        new = {one.row for one in step.new_requests}  # a decode may have been preempted, and have joined again
        indices = {
            chunk.sequence_id: index
            for index, chunk in enumerate(step.chunks)
            if chunk.sequence_id in of and chunk.row not in new
        }
        if not indices:
            return
        drafted = [lane for lane in lanes.all() if lane.running and (background or not lane.settings.background)]
        reserved = {lane.settings.name: self._state.running.spare_blocks(lane) for lane in drafted}
        candidates = [
            DraftCandidate(SequenceView(of[number]), self._draft_room(of[number], reserved)) for number in indices
        ]
        allotted = self._speculation.allot(step.number, step.chunks, candidates, budget)
        for number, count, token_ids in sorted(allotted, key=lambda one: indices[one.number]):
            count = min(count, self._draft_room(of[number], reserved))  # those before it have taken blocks
            if count > 0:
                step.add_drafts(indices[number], of[number], count, token_ids[:count])

    def _draft_room(self, sequence: Sequence, reserved: Mapping[str, int]) -> int:
        """Return the drafts that a sequence may have, with a token behind them.

        They take blocks that are free beyond those reserved; of evictable ones the one that the sequence would take
        with its next tokens anyway: in a pool that has been used for a while none is free.
        """
        left = reserved.get(sequence.request.lane)
        if left is None or sequence.preempt_pending or sequence.slow_to_draw:
            return 0
        memory, num_groups = self._state.memory, len(sequence.block_tables)
        spare = max(memory.num_free_blocks - left, min(num_groups, memory.num_available_blocks - left))
        tokens = memory.draft_room(sequence, max(0, spare))
        return min(tokens - sequence.num_computed, sequence.max_output_tokens - len(sequence.output) - 1)
