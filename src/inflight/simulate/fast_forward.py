"""Fast-forward: a scheduler that leaves out decodes of which nothing comes but their next tokens.

A sequence that has its first token, and whose length is forced, is foreseen for a while: each step makes it one token
longer, takes a block where its last one is full, and makes that one findable, with a snapshot of recurrent state behind
it where the model keeps any and one is due. While it is *steady*, no plan has a chunk for it and nothing of it is
committed; its counters stand still, one token ahead, so that for the core its next token is being computed already.
They are brought up to date (`_sync`) when a block is due, and for good before its last token, or before anybody might
have to be preempted. What is left out of a plan is told in it by number (`CondensedPlan`), so that the step's cost is
the same. Steps in which all sequences are steady, and nobody waits, are alike: `steady_decodes` says how many, and
`fast_forward` takes them at once.

Rows, blocks, snapshots and their order, what can be found in them, counts and ends are those of stepping. What is left
out is what scheduling would have learnt of step times and of the lengths of answers under way. So this is only for
schedulers that nobody asks for either (`simulation` sees to that): of requests of one foreground lane, first come,
first served, with a budget for all rows, and an executor that fails no step and draws TOKEN whenever it draws.
`snapshot` tells of sequences as they became steady. This is for depth 1; with a step in flight, `fast_forward_ahead`.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Sequence as Items
from dataclasses import dataclass

from inflight.core.request_timings import OTHER
from inflight.core.scheduling.scheduler import Scheduler
from inflight.core.sequence import Sequence
from inflight.core.strategies import StepShape
from inflight.core.types.events import Event
from inflight.core.types.features import Features
from inflight.core.types.plan import BatchPlan, StepResult

TOKEN = 0  # what every token is
LASTING = 4  # steps for which the available blocks must do, when a sequence becomes steady
MOST = 256  # steps that are foreseen together: a request that comes makes most of them others


class CondensedPlan(BatchPlan, frozen=True):
    """A plan with decodes that have no chunk: so many, which read `steady_context` positions together."""

    steady: int = 0
    steady_context: int = 0

    @property
    def tokens(self) -> int:
        return sum(chunk.length for chunk in self.chunks) + sum(self.padding) + self.steady

    def all_features(self, chunks: Features) -> Features:
        """Of the step, with these of its chunks."""
        return Features(
            chunks.tokens + self.steady,
            chunks.rows + self.steady,
            chunks.samples + self.steady,
            chunks.decode_context + self.steady_context,
            chunks.prefill_context,
            chunks.moved_blocks,
        )


@dataclass(frozen=True, slots=True)
class SteadyDecodes:
    """Steps that are alike: `rows` sequences decode, reading `context` positions together in the first step and one
    more each in every later one. most: such steps to come."""

    rows: int
    context: int
    most: int


@dataclass(frozen=True, slots=True)
class SteadyTokens:
    """A request had one token in each of the steps first … last - 1."""

    request_id: str
    first: int
    last: int


class FastForward(Scheduler):
    _ahead = 0  # steps in flight while a plan is made

    def _reset(self) -> None:
        super()._reset()
        self._first: dict[Sequence, int] = {}  # those that are steady → step of their first token as such
        self._since: dict[Sequence, int] = {}  # → step that their counters tell of
        self._context = 0  # positions that they read in the next step, together
        self._blocks: list[tuple[int, float, int, Sequence]] = []  # heap: step that needs or fills a block, rank
        self._ends: list[tuple[int, int, Sequence]] = []  # heap: step of the last token, ticket
        self._tickets = itertools.count()
        self._tokens: list[SteadyTokens] = []

    # -- many steps at once -------------------------------------------------------------------------------------

    def steady_decodes(self) -> SteadyDecodes | None:
        """What the next steps all are, where they are all alike; None where they are not, or somebody has its last
        token in the next."""
        rows, size = len(self._first), self._memory.block_size
        if (
            not rows
            or self._outputs.planned
            or len(self._running) > rows
            or len(self._lanes)
            or self._memory.transfer_ids_out
        ):
            return None
        most = min(self._ends[0][0] - self._next_step, (self._memory.num_available_blocks // rows - 1) * size)
        return SteadyDecodes(rows, self._context, min(most, MOST)) if most > 0 else None

    def fast_forward(self, times: Items[float]) -> None:
        """Take the first of these steps at once: planned at these times but the last, each committed when the next is
        planned, or at the last of them."""
        steps = len(times) - 1
        for lane in self._lanes.all():
            lane.clock.charge(times[0], OTHER, lane.settings.name)
            lane.clock.charge(times[-2], OTHER, lane.settings.name)
            if lane.running:
                lane.served(steps * lane.running)
        while self._blocks and (step := self._blocks[0][0]) < self._next_step + steps:
            for _, _, sequence in self._drain_due(step):
                self._advance(sequence, step)
            self._memory.publish_checkpoints()  # what one step writes, the next may find or take
        self._pass(steps)
        self._next_step += steps
        self._round_began = times[-1]

    def drain_tokens(self) -> list[SteadyTokens]:
        """Tokens that came without events, of those that are steady no more; since the last call."""
        tokens, self._tokens = self._tokens, []
        return tokens

    # -- single steps -------------------------------------------------------------------------------------------

    def abort(self, request_id: str, now: float) -> list[Event]:
        if request_id in self._requests:
            self._leave_all()
        return super().abort(request_id, now)

    def commit(self, plan: BatchPlan, result: StepResult, now: float) -> list[Event]:
        planned = [self._outputs.planned[chunk.sequence_id] for chunk in plan.chunks]
        self._pass(1)
        events = super().commit(plan, result, now)
        for sequence in planned:
            self._join(sequence)
        return events

    def _compose(self, shape: StepShape) -> BatchPlan | None:
        """The steady ones have their tokens of the budget, and no chunks."""
        step = self._next_step
        while self._ends and self._ends[0][0] <= step:
            self._leave(heapq.heappop(self._ends)[2])
        self._state.prefix_loads.start_for_newcomers()  # before others' blocks
        self._advance_due()
        rows = len(self._first)
        if not rows:
            return self._build(shape)
        for lane in self._lanes.all():
            if lane.running:  # the only one
                lane.served(rows)
        early_end = shape.early_end and (shape.early_end - rows or -1)  # 0 would mean that there is none
        left = StepShape(shape.token_budget - rows, shape.row_limit, shape.whole_prompts, early_end=early_end)
        plan = self._build(left)
        if plan is None:
            freed = self._running.drain_freed_rows()
            return CondensedPlan(step, (), (), freed, steady=rows, steady_context=self._context)
        parts = plan.chunks, plan.new_requests, plan.freed_rows, plan.padding, plan.transfers
        return CondensedPlan(step, *parts, steady=rows, steady_context=self._context)

    def _learn(self, plan: BatchPlan, result: StepResult) -> None:
        """Nothing, since nobody asks."""

    # -- who is steady ------------------------------------------------------------------------------------------

    def _join(self, sequence: Sequence) -> None:
        """It is steady from the next step on, if it can be: it decodes, and neither ends nor is preempted at once."""
        if sequence.finish is not None or sequence.num_uncomputed != 1 or not sequence.output:
            return
        if sequence.num_computed < sequence.recompute_until or sequence.preempt_pending:
            return  # what a preemption took is computed again, and counted as such
        if sequence.in_flight != self._ahead:
            return
        tokens = sequence.checker.guaranteed_tokens - self._ahead
        lasting = self._memory.num_available_blocks * self._memory.block_size
        if tokens < 1 or sequence.request.params.n > 1 or lasting < LASTING * (len(self._first) + 1):
            return
        step = self._next_step
        self._first[sequence], self._since[sequence] = step, step + self._ahead
        sequence.num_computed += 1
        self._context += sequence.num_computed
        heapq.heappush(self._ends, (step + tokens, next(self._tickets), sequence))
        self._await_block(sequence, step, sequence.num_computed - 1)

    def _advance_due(self) -> None:
        """Whoever needs or fills a block in the next step does so. Blocks go by rank: behind the first of the others
        that does, too, they have chunks like that one. Nobody is steady any more if one might lack a block."""
        step = self._next_step
        due = self._drain_due(step)
        if len(due) + len(self._running) - len(self._first) > self._memory.num_available_blocks:
            self._leave_all()
            return
        if not due:
            return
        others = (one for one in self._running.sequences if one not in self._first and self._moves_block(one))
        first = min(map(self._rank, others), default=None)
        for arrival, number, sequence in due:
            if first is None or (arrival, number) < first:
                self._advance(sequence, step)
            else:
                self._leave(sequence)

    def _drain_due(self, step: int) -> list[tuple[float, int, Sequence]]:
        """Whoever needs or fills a block in this step, behind its rank, which they stand in the order of."""
        due = []
        while self._blocks and self._blocks[0][0] <= step:
            _, arrival, number, sequence = heapq.heappop(self._blocks)
            if sequence in self._first:
                due.append((arrival, number, sequence))
        return due

    def _moves_block(self, sequence: Sequence) -> bool:
        """Whether it decodes in the next step, and needs or fills a block with it."""
        size, computed = self._memory.block_size, sequence.num_computed
        on_edge = not (computed + 1) % size or computed == len(sequence.blocks) * size
        return on_edge and sequence.num_uncomputed == 1

    @staticmethod
    def _rank(sequence: Sequence) -> tuple[float, int]:
        """First come, first served."""
        return sequence.request.arrival, sequence.number

    def _advance(self, sequence: Sequence, step: int) -> None:
        """It takes its token of this step, and the block and the snapshot as a chunk would."""
        self._sync(sequence, step)
        end = sequence.num_computed
        self._grow(sequence, end, step)
        if not end % self._memory.block_size:
            if self._memory.has_state:
                sequence.num_computed = end - 1
                self._memory.take_checkpoints(sequence, end)
                sequence.num_computed = end
            self._memory.publish(sequence)
        self._sync(sequence, step + 1)
        self._await_block(sequence, step + 1, end)

    def _grow(self, sequence: Sequence, end: int, step: int) -> None:
        if end > len(sequence.blocks) * self._memory.block_size and self._memory.allocate(sequence, end) is None:
            raise RuntimeError(f"sequence {sequence.number} was steady until step {step}, and there is no block for it")

    def _pass(self, steps: int) -> None:
        """So many steps were taken."""
        self._context += steps * len(self._first)

    def _leave_all(self) -> None:
        """Nobody is steady any more; all is as if every plan before the next had been made."""
        for sequence in tuple(self._first):
            self._leave(sequence)
        self._blocks.clear()
        self._ends.clear()

    def _leave(self, sequence: Sequence) -> None:
        """It has chunks again, from the next step on."""
        step = self._next_step
        if sequence not in self._first:
            return
        self._sync(sequence, step)
        self._context -= sequence.num_computed
        sequence.num_computed -= 1
        del self._since[sequence]
        self._tokens.append(SteadyTokens(sequence.request.request_id, self._first.pop(sequence), step))

    def _sync(self, sequence: Sequence, step: int) -> None:
        """Its counters tell of this step, if they do not tell of a later one."""
        tokens, self._since[sequence] = max(0, step - self._since[sequence]), max(step, self._since[sequence])
        sequence.output += [TOKEN] * tokens
        sequence.num_tokens += tokens
        sequence.num_computed += tokens
        sequence.checker.passed(tokens)

    def _await_block(self, sequence: Sequence, step: int, computed: int) -> None:
        """Note the next step that needs a block of its own, or that fills one: snapshots are taken there, too. In this
        step, so much is computed already."""
        size = self._memory.block_size
        wait = min(len(sequence.blocks) * size - computed, -(computed + 1) % size)
        heapq.heappush(self._blocks, (step + wait, *self._rank(sequence), sequence))
