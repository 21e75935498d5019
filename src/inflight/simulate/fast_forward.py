"""Fast-forward: a scheduler that omits decodes from its plans while their outcome is known.

Once a sequence has its first token and its length is forced, each step gives it one token, takes a block where the last
one is full, and makes full blocks findable. Such a sequence is *omitted*: plans have no chunk for it, commits have no
token of it, and its counters stand still, one computed token ahead, so that the plan builder passes it over. They are
brought up to date when it takes or fills a block, and when it is included again: in the commit of its last token, or
before a sequence might have to be preempted. A plan has the number of omitted decodes (`CondensedPlan`), so that the
step costs the same. Where all running sequences are omitted and none can join, the plan builder is not asked. Steps are
alike then, and where one long prompt takes what decodes leave of the budget: `alike_steps` says how many, and `skip`
takes them at once.

Rows, blocks, checkpoints and their order, what the prefix cache finds, counts and ends are those of stepping. Times of
steps and the lengths of answers in progress are not learnt. So this is for schedulers that use neither (`simulation`
checks that): one foreground lane, first come, first served, a budget for all rows, and an executor that never fails and
samples TOKEN. `stats` has sequences as of their last update.

A sequence that is included for its last token has that in flight, but no chunk in the step's plan: the commit adds
both. With two steps in flight, a plan is made while the step before it is computed. A sequence is then omitted while
its last chunk is in flight, and is always included with a token in flight. A block is taken when its step is planned,
and found once the step before it is committed, since its last token is not known earlier. Where requests share nothing,
only numbers of blocks are those of stepping (`ReservedBlocks`). Where steps are skipped, the plan in flight stands for
the last of them. Models with recurrent state are excluded: checkpoints are named by tokens that are still in flight.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence as Items
from operator import attrgetter

from msgspec import structs

from inflight.core.scheduling.config import SchedulerConfig
from inflight.core.sequence import Sequence
from inflight.core.strategies import StepShape
from inflight.core.types.events import Event
from inflight.core.types.plan import BatchPlan, Chunk, Sampled, StepResult
from inflight.simulate.condensed_plan import AlikeSteps, CondensedPlan
from inflight.simulate.omitted import TOKEN, Omitted, OmittedTokens, ReservedBlocks
from inflight.simulate.unlearned import UnlearnedScheduler

MIN_STEPS = 4  # for which the available blocks suffice, when a sequence is omitted
MAX_STEPS = 256  # that are foreseen together: a request that comes makes most of them others


class FastForward(UnlearnedScheduler):
    """A scheduler that omits decodes from its plans while their outcome is known."""

    def __init__(self, config: SchedulerConfig, depth: int = 1, *, distinct_prompts: bool = False):
        """depth: steps in flight. distinct_prompts: as of the configuration."""
        super().__init__(config, distinct_prompts=distinct_prompts)
        self._ahead = depth - 1  # steps in flight while a plan is made
        self._omitted: dict[int, Omitted] = {}  # by number
        self._context = 0  # positions that they read in the next step, together
        # None: each takes its blocks itself, in the order of stepping, since others may find them.
        self._reserved = ReservedBlocks(self._memory) if self._memory.defers_publishing else None
        self._due: dict[int, list[Omitted]] = {}  # by the step in which they take or fill a block
        self._last_steps: list[tuple[int, int]] = []  # heap: step of the last token, number
        self._filling: list[Omitted] = []  # they fill a block with their token of the step in flight
        self._uncommitted: dict[int, Sequence] = {}  # included with a token in flight, which no plan has; by number
        self._overruns: list[int] = []  # numbers: omitted in the last plan, behind their last tokens
        self._tokens: list[OmittedTokens] = []
        self._shape: StepShape | None = None  # of all steps: these strategies always propose the same

    # -- many steps at once -------------------------------------------------------------------------------------

    def alike_steps(self) -> AlikeSteps | None:
        """Return the steps that come next, where these are alike; None where they are not."""
        rows, memory = len(self._omitted), self._memory
        prompts = len(self._running.sequences) - rows
        if memory.is_busy or not (rows or prompts):
            return None
        most, last = MAX_STEPS, 0
        if rows:
            last = self._last_steps[0][0] - self._next_step + 1
            most = min(most, last, ((memory.num_available_blocks - prompts) // rows - 1) * memory.block_size)
        if not prompts:
            is_alike = most > 0 and not self._outputs.planned and self._none_joins
            return AlikeSteps(rows, self._context, most, self._ahead > 0, most == last) if is_alike else None
        prompt = self._prompt_alone() if most > 0 else None
        if prompt is None or self._shape is None:
            return None
        chunk = self._shape.token_budget - rows
        steps = min(most, (prompt.num_uncomputed - 1) // chunk) if chunk > 1 else 0  # of one token: a decode
        behind, start = self._ahead > 0, prompt.num_computed
        return AlikeSteps(rows, self._context, steps, behind, steps == last, chunk, start) if steps > 0 else None

    def skip(self, alike: AlikeSteps, times: Items[float]) -> list[Event]:
        """Take some of these steps: planned at these times but the last, each committed when the next is planned, or at
        the last of them; those that are planned behind a step in flight, a time later. Return the events of the last
        commit, at which sequences may end; there are none before."""
        steps, rows = len(times) - 1, len(self._omitted)
        prompt = self._prompt_alone() if alike.chunk else None
        assert (prompt is not None) == bool(alike.chunk), "what was foreseen holds"
        self._running.drain_freed_rows()
        for lane in self._lanes.all():
            if lane.running:
                lane.served(steps * (rows + alike.chunk))
        self._take_blocks(steps, prompt, alike.chunk)
        if prompt is not None:
            prompt.charged = prompt.num_computed
        self._next_step += steps
        self._round_began = times[-1]
        if not self._ahead and self._last_steps and self._last_steps[0][0] < self._next_step:
            self._context += (steps - 1) * rows
            plan = BatchPlan(self._next_step - 1, ())
            self._foreground.planned(plan)
            return self.commit(plan, StepResult(plan.step, (), 0.0), times[-1])
        self._context += steps * rows
        return []

    def _take_blocks(self, steps: int, prompt: Sequence | None, chunk: int) -> None:
        """Take and fill the blocks of the next steps, each of which computes a chunk of the prompt, if there is one."""
        first = self._next_step
        if self._reserved is not None:
            self._reserved.reserve(first, first + steps)
            if prompt is not None:
                prompt.num_computed += steps * chunk
            return
        for step in range(first, first + steps):
            if prompt is None and step not in self._due:
                continue
            for one in self._pop_due(step):
                self._advance(one, step)
            if prompt is not None:
                prompt.num_computed += chunk
                self._memory.publish(prompt)
            self._publish_filled(step + 1)
            self._memory.publish_checkpoints()  # what one step writes, the next may find or take

    def drain_tokens(self) -> list[OmittedTokens]:
        """Return the tokens of sequences that were included again since the last call; no event has them."""
        tokens, self._tokens = self._tokens, []
        return tokens

    # -- single steps -------------------------------------------------------------------------------------------

    def abort(self, request_id: str, now: float) -> list[Event]:
        if request_id in self._requests:
            self._include_all()
        return super().abort(request_id, now)

    def commit(self, plan: BatchPlan, result: StepResult, now: float) -> list[Event]:
        if not self._ahead:
            self._include_last(with_token=True)
        overran = [one for number in self._overruns if (one := self._include(number, with_token=True)) is not None]
        self._overruns.clear()
        if self._uncommitted:
            plan, result = self._completed(plan, result)
        self._publish_filled(self._next_step)
        planned = self._outputs.planned
        chunks = [] if self._ahead else [planned[chunk.sequence_id] for chunk in plan.chunks]
        self._context += len(self._omitted)
        events = super().commit(plan, result, now)
        for one in overran:  # in the next plan, too
            self._uncommitted[one.number] = one
        for sequence in list(planned.values()) if self._ahead else chunks:
            if self._is_foreseen(sequence):
                self._omit(sequence)
        return events

    def _make_plan(self, shape: StepShape) -> BatchPlan | None:
        """Make a plan without omitted decodes, whose tokens are taken from the budget."""
        step, self._shape = self._next_step, shape
        if self._ahead:
            self._include_last()
        self._state.prefix_loads.start_for_newcomers()  # before others' blocks
        self._advance_due()
        rows = len(self._omitted)
        if not rows:
            return super()._make_plan(shape)
        for lane in self._lanes.all():
            if lane.running:  # the only one
                lane.served(rows)
        ended = [one for one in self._uncommitted.values() if one.finish is not None or not one.num_uncomputed]
        if len(self._running.sequences) == rows + len(ended) and self._none_joins:
            return self._condensed(rows)
        early_end = shape.early_end and (shape.early_end - rows or -1)  # 0 would mean that there is none
        left = StepShape(shape.token_budget - rows, shape.row_limit, shape.whole_prompts, early_end=early_end)
        plan = super()._make_plan(left) or BatchPlan(step, (), (), self._running.drain_freed_rows())
        parts = plan.chunks, plan.new_requests, plan.freed_rows, plan.padding, plan.transfers
        return CondensedPlan(step, *parts, omitted=rows, omitted_context=self._context)

    def _condensed(self, rows: int) -> CondensedPlan:
        """Make the plan in which all sequences are omitted, and none joins, as the plan builder would."""
        self._memory.begin_step(self._next_step)
        self._running.steady = None
        parts = (), (), self._running.drain_freed_rows(), (), self._memory.finish_plan()
        return CondensedPlan(self._next_step, *parts, omitted=rows, omitted_context=self._context)

    @property
    def _none_joins(self) -> bool:
        """Whether no waiting sequence can join before one ends."""
        return not len(self._lanes) or not (self._running.num_free_rows or self._memory.has_sources)

    def _prompt_alone(self) -> Sequence | None:
        """Return the prompt that takes all that decodes leave of the next steps' budgets, if it is long enough: the
        first one, where none decodes but omitted sequences. None where something else might happen."""
        memory, omitted = self._memory, self._omitted
        if self._shape is None or self._shape.whole_prompts or memory.has_state or memory.has_exporter:
            return None
        if len(self._outputs.planned) != self._ahead:
            return None
        if len(self._lanes) and memory.has_sources:
            return None
        prompts = [one for one in self._running.sequences if one.number not in omitted]
        for one in prompts:
            if one.waiting_for_kv or one.preempt_pending or (one.started and one.num_uncomputed < 2):
                return None
        first = min(prompts, key=_rank)
        if list(self._outputs.planned) != [first.number] * self._ahead or first.num_pending or not first.started:
            return None
        is_new = not (first.output or first.recompute_until or first.lacks_scores)
        return first if is_new and first.request.pooling is None else None

    def _completed(self, plan: BatchPlan, result: StepResult) -> tuple[BatchPlan, StepResult]:
        """Add the chunks and tokens that a step in flight lacks. Decodes come first, by rank."""
        new_rows = {one.row for one in plan.new_requests}
        decodes: list[Chunk] = []
        others: list[Chunk] = []
        for chunk in plan.chunks:
            is_decode = chunk.sample and chunk.length == 1 and chunk.row not in new_rows
            (decodes if is_decode else others).append(chunk)
        for number, one in self._uncommitted.items():
            assert one.row is not None, "a row is not freed while a chunk of it is in flight"
            decodes.append(Chunk(number, one.row, one.num_computed - 1, 1, (), 1))
        self._uncommitted = {}
        decodes.sort(key=lambda one: _rank(self._outputs.planned[one.sequence_id]))
        sampled = {one.sequence_id: one for one in result.sampled}
        first = [sampled.pop(one.sequence_id, Sampled(one.sequence_id, (TOKEN,))) for one in decodes]
        plan = structs.replace(plan, chunks=(*decodes, *others))
        return plan, structs.replace(result, sampled=(*first, *sampled.values()))

    # -- which sequences are omitted ----------------------------------------------------------------------------

    def _is_foreseen(self, sequence: Sequence) -> bool:
        """Return whether a sequence decodes from the next step on, and neither ends nor is preempted at once."""
        if sequence.finish is not None or sequence.num_uncomputed != 1 or sequence.num_pending != self._ahead:
            return False
        if not (sequence.output or sequence.num_pending):
            return False
        if sequence.num_computed < sequence.recompute_until or sequence.preempt_pending:
            return False  # tokens that a preemption took are computed again, and counted as such
        if sequence.in_flight != self._ahead or sequence.request.params.n > 1:
            return False
        available = self._memory.num_available_blocks * self._memory.block_size
        return sequence.checker.guaranteed_tokens > 0 and available >= MIN_STEPS * (len(self._omitted) + 1)

    def _omit(self, sequence: Sequence) -> None:
        """Omit a sequence from the next step on."""
        step, ahead = self._next_step, self._ahead
        last = step + sequence.checker.guaranteed_tokens - ahead
        self._running.steady = None  # the last plan has a chunk of it
        self._omitted[sequence.number] = one = Omitted(sequence, _rank(sequence), step, last, step + ahead)
        sequence.num_computed += 1
        self._context += sequence.num_computed
        heapq.heappush(self._last_steps, (last, sequence.number))
        self._await_block(one, step, sequence.num_computed - 1)

    def _include_all(self) -> None:
        """Include all sequences, as if every plan before the next had been made whole."""
        for number in tuple(self._omitted):
            self._include(number)
        self._due.clear()
        self._last_steps.clear()

    def _include_last(self, *, with_token: bool = False) -> None:
        """Include the sequences whose last token is in flight. With two steps in flight, one more is planned of those
        that may have more tokens, as their forced lengths are no scheduler's business: they overrun. Where that moves
        no block, they stay omitted until the last token is committed."""
        while self._last_steps and self._last_steps[0][0] < self._next_step:
            last, number = heapq.heappop(self._last_steps)
            one = self._omitted.get(number)
            if one is None or one.last != last:
                continue
            outputs = len(one.sequence.output) + one.last + 1 + self._ahead - one.updated  # at the end
            if self._ahead and outputs < one.sequence.max_output_tokens and self._block_step(one) > self._next_step:
                self._overruns.append(number)
            else:
                self._include(number, with_token=with_token)

    def _include(self, number: int, *, with_token: bool = False) -> Sequence | None:
        """Have chunks of a sequence again from the next step on, and return it, if it was omitted. with_token: before
        the commit of its last token."""
        one = self._omitted.pop(number, None)
        if one is None:
            return None
        step = self._next_step - with_token
        sequence = one.update(step)
        if self._reserved is not None:
            self._reserved.include(sequence, one.block_step, self._next_step)
        self._context -= sequence.num_tokens + self._ahead
        if with_token or (self._ahead and not sequence.in_flight):
            step -= self._ahead  # its token comes with the commit of the step in flight
            chunks = 1 + self._ahead if with_token else 1
            sequence.num_computed += chunks - 1
            sequence.num_pending += chunks
            sequence.in_flight += chunks
            self._uncommitted[number] = self._outputs.planned[number] = sequence
        else:
            sequence.num_computed -= 1
        if one.first < step:
            self._tokens.append(OmittedTokens(sequence.request.request_id, one.first, step))
        return sequence

    # -- blocks of omitted sequences ----------------------------------------------------------------------------

    def _advance_due(self) -> None:
        """Take and fill the blocks of the next step. They go by rank: behind the first sequence whose blocks its chunk
        moves, omitted ones are included. All are included where one might lack a block."""
        step = self._next_step
        if self._reserved is not None:
            prompts_and_due = len(self._running) - len(self._omitted) + self._reserved.due(step)
            if prompts_and_due > self._memory.num_available_blocks:
                self._include_all()
            else:
                self._reserved.reserve(step, step + 1)
            return
        due = self._pop_due(step)
        if len(due) + len(self._running) - len(self._omitted) > self._memory.num_available_blocks:
            self._include_all()
            return
        if not due:
            return
        others: list[Sequence] = []
        if len(self._running) > len(self._omitted):
            running = self._running.sequences
            others += [one for one in running if one.number not in self._omitted and self._moves_block(one)]
        others += [one.sequence for one in due if one.sequence.in_flight]
        first = min(map(_rank, others), default=None)
        for one in due:
            if first is None or one.rank <= first:
                self._advance(one, step)
            else:
                self._include(one.sequence.number)

    def _pop_due(self, step: int) -> list[Omitted]:
        """Return the omitted sequences that take or fill a block in a step, by rank; each is due once."""
        due = self._due.pop(step, [])
        if due:
            due = [one for one in due if self._omitted.get(one.sequence.number) is one and one.block_step == step]
            due.sort(key=_rank_of)
        return due

    def _block_step(self, one: Omitted) -> int:
        """Return the next step that takes or fills a block of an omitted sequence."""
        reserved = self._reserved
        return one.block_step if reserved is None else reserved.next_step(one.block_step, self._next_step)

    def _moves_block(self, sequence: Sequence) -> bool:
        """Return whether a sequence decodes in the next step, and takes or fills a block with it."""
        size, computed = self._memory.block_size, sequence.num_computed
        on_edge = not (computed + 1) % size or computed == len(sequence.blocks) * size
        return on_edge and sequence.num_uncomputed == 1

    def _advance(self, one: Omitted, step: int) -> None:
        """Take or fill a block, and take a checkpoint, as the sequence's chunk of this step would."""
        sequence = one.update(step)
        end = sequence.num_tokens + self._ahead
        if end > len(sequence.blocks) * self._memory.block_size and self._memory.allocate(sequence, end) is None:
            raise RuntimeError(f"sequence {sequence.number} was omitted until step {step}, but no block is available")
        if not end % self._memory.block_size:
            if self._ahead:
                if not sequence.in_flight:  # else its chunk's token publishes the block
                    self._filling.append(one)
            else:
                if self._memory.has_state:
                    sequence.num_computed -= 1
                    self._memory.take_checkpoints(sequence, end)
                    sequence.num_computed += 1
                self._memory.publish(sequence)
        self._await_block(one, step + 1, end)

    def _publish_filled(self, step: int) -> None:
        """Publish the blocks that the step in flight fills, once the step before it is committed; step: the next."""
        for one in self._filling:
            self._memory.publish(one.update(step))
        self._filling.clear()

    def _await_block(self, one: Omitted, step: int, computed: int) -> None:
        """Note the next step that takes or fills a block, if so many tokens are computed before this step."""
        sequence, size = one.sequence, self._memory.block_size
        wait = len(sequence.blocks) * size - computed
        if self._reserved is not None:  # and a full block has no effect
            one.block_step = step + wait
            self._reserved.omit(one.block_step, step)
            return
        wait = min(wait, -(computed + 1) % size)
        one.block_step = step + wait
        self._due.setdefault(step + wait, []).append(one)


def _rank(sequence: Sequence) -> tuple[float, int]:
    """Return the rank under first come, first served."""
    return sequence.request.arrival, sequence.number


_rank_of = attrgetter("rank")  # of an omitted sequence
