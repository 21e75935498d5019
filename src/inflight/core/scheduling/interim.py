"""Interim steps: short prompts are computed while the step of a long one is suspended.

A prompt is short where it has at most half of the tokens that the suspended one still lacks, and it is taken where its
policy ranks it before that one, or by arrival alone. All interim steps within a step have together at most `share` of
its tokens, so that a flood of short prompts makes a long one last 1 + share times as long at most, and no more
(arXiv 2602.16603 suspends without a bound).

An interim step takes free rows and blocks by the rules of every step (watermark, expected peak, calls that wait for
acting programs), and preempts nothing. A short prompt that goes before the head of its queue leaves that one a row and
its blocks. Where nothing can be computed at once, nothing changes. It sees no block that the suspended step writes:
what that one has published is not computed yet.
"""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import structs

from inflight.core.queueing.lanes import Lane
from inflight.core.scheduling.state import SchedulerState
from inflight.core.scheduling.step import Step
from inflight.core.sequence import Sequence
from inflight.core.strategies import StepShape
from inflight.core.types.plan import BatchPlan

MAX_TOKENS = 128  # of an interim step
LOOK_AHEAD = 16  # waiting sequences of a lane that are looked at


class InterimSteps:
    """Interim steps of one scheduler.

    Attributes:
        due: Whether the step in flight is to be suspended, since `build` may have a step for others.
    """

    def __init__(self, state: SchedulerState, share: float, min_chunk: int):
        """Suspend nothing yet.

        Args:
            state: The scheduler's.
            share: Of a step's tokens that interim steps within it may have; 0: none is suspended.
            min_chunk: Tokens of a prompt in a step from which it may be suspended.
        """
        self.due = False
        self._state, self._share, self._min_chunk = state, share, min_chunk
        self._longest: Sequence | None = None  # the longest prompt of the step in flight
        self._max_short_tokens = 0  # tokens of a short prompt
        self._left = 0  # of interim steps within the step in flight
        self._shape = StepShape(0, 0)

    def begin(self, plan: BatchPlan, shape: StepShape, planned: Mapping[int, Sequence]) -> BatchPlan:
        """Return the plan of a step that begins, marked where it may be suspended. planned: sequences of its chunks."""
        self.due, self._longest = False, None
        if not self._share or shape.run_to_completion or self._state.running.steady is not None:
            return plan
        longest, most = None, 0
        for chunk in plan.chunks:
            sequence = planned[chunk.sequence_id]
            if chunk.length - chunk.num_drafts >= self._min_chunk and sequence.num_tokens - chunk.start > most:
                longest, most = sequence, sequence.num_tokens - chunk.start
        if longest is None:
            return plan
        self._longest, self._shape = longest, shape
        self._max_short_tokens, self._left = most // 2, int(self._share * plan.tokens)
        self.due = self._left > 0 and self._has_candidate()
        return structs.replace(plan, may_suspend=True)

    def arrived(self, sequence: Sequence) -> None:
        if self._longest is not None and self._left > 0 and not self.due:
            lane = self._state.lanes.of(sequence)
            self.due = lane.queue.is_ready(sequence) and self._is_short(sequence, lane)

    def end(self) -> None:
        """Note that the step in flight has ended."""
        self.due, self._longest = False, None

    def build(self, number: int, within: BatchPlan) -> BatchPlan | None:
        """Return an interim step of this number; None where nothing can be computed now. within: suspended."""
        self.due = False
        if self._longest is None:
            return None
        budget = min(self._left, MAX_TOKENS)
        step = Step(number, structs.replace(self._shape, token_budget=budget, whole_prompts=False), self._state)
        memory, running = self._state.memory, self._state.running
        memory.hide_blocks(self._unwritten(within))
        try:
            self._fill(step)
        finally:
            memory.hide_blocks(frozenset())
        if not step.chunks:
            return None
        tokens = budget - step.budget
        self._state.lanes.add_min_share(tokens)
        self._left -= tokens
        self.due = self._left > 0 and self._has_candidate()
        return BatchPlan(
            number,
            tuple(step.chunks),
            tuple(step.new_requests),
            running.drain_freed_rows(),
            transfers=memory.finish_plan(),
            within=within.step,
        )

    # -- who may have a chunk -----------------------------------------------------------------------------------

    def _has_candidate(self) -> bool:
        if any(map(self._goes_on, self._state.running.sequences)):
            return True
        return any(self._is_short(one, lane) for lane in self._foreground() for one in self._first(lane))

    def _foreground(self) -> list[Lane]:
        return self._state.lanes.in_turn(background=False)

    def _goes_on(self, sequence: Sequence) -> bool:
        """Return whether a running sequence is inside a short prompt, of which the suspended step has nothing."""
        if sequence.in_flight or sequence.num_uncomputed < (2 if sequence.started else 1):
            return False
        return self._is_ready(sequence) and self._is_short(sequence, self._state.lanes.of(sequence))

    def _is_ready(self, sequence: Sequence) -> bool:
        held_up = sequence.waiting_for_kv or sequence.sits_out or sequence.recomputes or sequence.preempt_pending
        return sequence.finish is None and not held_up and not self._state.lanes.of(sequence).settings.background

    def _first(self, lane: Lane) -> list[Sequence]:
        return sorted(lane.queue.first(LOOK_AHEAD), key=lane.queue.rank)

    def _is_short(self, sequence: Sequence, lane: Lane) -> bool:
        request, longest, policy = sequence.request, self._longest, lane.queue.policy
        if not sequence.generates or request.grammar is not None or request.kv_transfer is not None:
            return False
        if sequence.lacks_scores or lane.settings.background or longest is None:
            return False
        known = sequence.num_computed if sequence.row is not None else 0
        if sequence.num_tokens - known > self._max_short_tokens:
            cached = 0 if sequence.row is not None else self._state.memory.num_cached_tokens(sequence)
            if sequence.num_tokens - max(known, cached) > self._max_short_tokens:
                return False
        if policy.by_arrival or self._state.lanes.of(longest) is not lane:
            return True
        return lane.queue.rank(sequence) < lane.queue.rank(longest)

    # -- the step -----------------------------------------------------------------------------------------------

    def _unwritten(self, plan: BatchPlan) -> set[int]:
        """Return the blocks of the first KV group that a suspended step writes."""
        size, found = self._state.memory.block_size, set[int]()
        numbers = {chunk.sequence_id: chunk for chunk in plan.chunks}
        for sequence in self._state.running.sequences:
            if (chunk := numbers.get(sequence.number)) is not None:
                found.update(sequence.blocks[chunk.start // size : -(-(chunk.start + chunk.length) // size)])
        return found

    def _fill(self, step: Step) -> None:
        for sequence in tuple(self._state.running.sequences):
            if step.budget > 0 and self._goes_on(sequence):
                self._add_chunk(step, sequence)
        for lane in self._foreground():
            self._admit_waiting(step, lane)
        if not step.chunks:
            return
        for sequence in self._state.running.sequences:  # whose prompts an earlier interim step completed
            is_decode = sequence.started and not sequence.in_flight and sequence.num_uncomputed == 1
            if is_decode and step.budget > 0 and self._is_ready(sequence):
                self._add_chunk(step, sequence)

    def _admit_waiting(self, step: Step, lane: Lane) -> None:
        """Admit short prompts of a lane while there are rows, blocks and budget."""
        state = self._state
        first = self._first(lane)
        head = first[0] if first and not self._is_short(first[0], lane) else None
        for sequence in first:
            if self._budget(step, lane) <= 0 or not state.running.has_row(lane, self._shape):
                return
            if head is not None and state.running.num_free_rows < 2:
                return
            if sequence is head or not self._is_short(sequence, lane) or state.paused.is_to_wait(sequence, lane):
                continue
            if not state.memory.can_admit(sequence, self._spare_blocks(sequence, lane, head), at_once=True):
                return
            admitted = state.memory.admit(sequence, 0)
            assert admitted, "asked before"
            lane.queue.take(sequence)
            sequence.timings.start(state.time.now, lane.clock)
            state.running.join(sequence)
            state.preemption.joined(sequence)
            self._add_chunk(step, sequence)

    def _spare_blocks(self, newcomer: Sequence, lane: Lane, head: Sequence | None) -> int:
        """Return the blocks that a newcomer leaves available. head: the first of its queue, where that stays there."""
        state, memory = self._state, self._state.memory
        spare = state.spare_blocks(newcomer, lane)
        if memory.has_windows:  # they may have to slide before a chunk
            spare += memory.num_groups * (MAX_TOKENS // memory.block_size + 1)
        return spare if head is None else spare + memory.blocks_to_admit(head)

    def _budget(self, step: Step, lane: Lane) -> int:
        most = lane.settings.max_tokens
        return step.budget if most is None else min(step.budget, most - step.prompt_tokens[lane.settings.name])

    def _add_chunk(self, step: Step, sequence: Sequence) -> None:
        """Compute as much of a sequence as fits, if it has blocks for that or finds free ones."""
        memory, lane = self._state.memory, self._state.lanes.of(sequence)
        length = step.prompt_length(sequence, self._budget(step, lane), lane.settings.chunk)
        if length <= 0 or not memory.can_allocate(sequence, sequence.num_computed + length):
            return
        new_blocks = memory.allocate(sequence, sequence.num_computed + length)
        assert new_blocks is not None, "asked before"
        if not sequence.started:
            new_blocks = step.start_row(sequence)
        step.add_chunk(sequence, length, new_blocks)
        step.prompt_tokens[lane.settings.name] += length
