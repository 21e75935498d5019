"""Fast-forward with a step in flight (depth 2): decodes of which nothing comes but their next tokens are left out of
plans that are made while the step before them is computed.

What of `fast_forward` holds here: who is steady, until when, and that a step with a block for it or its last token is
brought up to date. What differs, since a plan is made before the tokens of the step in flight are there:

- who becomes steady has a chunk in flight, whose token comes as any other; whoever is steady no more has one in flight
  that is in no plan: it is put back when that step is committed (`_whole`), in the place that its rank gives it;
- a step's chunk takes its block when the step is planned, and fills it with a token that is not known yet: the block is
  found once the step before is committed, in the same order.

Steps are planned and committed one by one, also where all are alike. Not for models with recurrent state, whose
snapshots are named after tokens that are to come.
"""

from __future__ import annotations

from msgspec import structs

from inflight.core.sequence import Sequence
from inflight.core.types.events import Event
from inflight.core.types.plan import BatchPlan, Chunk, Sampled, StepResult
from inflight.simulate.fast_forward import TOKEN, FastForward, SteadyDecodes, SteadyTokens


class FastForwardAhead(FastForward):
    _ahead = 1

    def _reset(self) -> None:
        super()._reset()
        self._fills: dict[int, Sequence] = {}  # steady ones that fill a block with the token of the step in flight
        self._left: dict[int, Sequence] = {}  # those whose token of that step is in no plan, steady no more; by number

    def steady_decodes(self) -> SteadyDecodes | None:
        """None: what is in flight could not be told of the last of them."""
        return None

    def commit(self, plan: BatchPlan, result: StepResult, now: float) -> list[Event]:
        if not self._fills and not self._left:
            return super().commit(plan, result, now)
        self._outputs.planned |= self._fills
        whole, sampled = self._whole(plan, result)
        self._left = {}
        events = super().commit(whole, structs.replace(result, sampled=sampled), now)
        for number in self._fills:
            del self._outputs.planned[number]
        self._fills = {}
        return events

    def _whole(self, plan: BatchPlan, result: StepResult) -> tuple[BatchPlan, tuple[Sampled, ...]]:
        """A plan and its tokens, with those that were left out of it. Decodes come first, by rank."""
        new_requests = {one.row for one in plan.new_requests}
        decodes = {
            one.sequence_id: one
            for one in plan.chunks
            if one.sample and one.length == 1 and one.row not in new_requests
        }
        others = [one for one in plan.chunks if one.sequence_id not in decodes]
        for number, one in self._left.items():
            assert one.row is not None, "nobody gives up a row while something of it is in flight"
            decodes[number] = Chunk(number, one.row, one.num_computed - 1, 1, (), 1)
        by_rank = sorted((*decodes, *self._fills), key=lambda number: self._rank(self._outputs.planned[number]))
        theirs = {one.sequence_id: one for one in result.sampled}
        first = [theirs.pop(number, Sampled(number, (TOKEN,))) for number in by_rank]
        chunks = [decodes[number] for number in by_rank if number in decodes]
        return structs.replace(plan, chunks=(*chunks, *others)), (*first, *theirs.values())

    def _take_tokens(self, sampled: Sampled) -> list[Event]:
        sequence = self._outputs.planned[sampled.sequence_id]
        if sequence.number not in self._fills:
            return super()._take_tokens(sampled)
        self._sync(sequence, self._next_step)
        self._memory.publish(sequence)
        return []

    def _advance(self, sequence: Sequence, step: int) -> None:
        """It takes the block of this step as a chunk would; a full one is found when its last token is there. (A chunk
        in flight sees to that by itself.)"""
        self._sync(sequence, step)
        end = sequence.num_tokens + 1
        self._grow(sequence, end, step)
        if not end % self._memory.block_size and not sequence.in_flight:
            self._fills[sequence.number] = sequence
        self._await_block(sequence, step + 1, end)

    def _leave(self, sequence: Sequence) -> None:
        """It has chunks again, from the next step on. That of the step in flight it never had, unless it became steady
        behind it."""
        step = self._next_step
        if sequence not in self._first:
            return
        self._sync(sequence, step)
        self._context -= sequence.num_tokens + 1
        first = self._first.pop(sequence)
        del self._since[sequence]
        if sequence.in_flight:
            sequence.num_computed -= 1
            return
        sequence.num_pending += 1
        sequence.in_flight += 1
        self._left[sequence.number] = self._outputs.planned[sequence.number] = sequence
        if first < step - 1:
            self._tokens.append(SteadyTokens(sequence.request.request_id, first, step - 1))
