"""Chunks of a step, as the plan tells them: the tokens of one sequence, and with its first one the row that it has.

Knows what a sequence's chunk draws, scores and keeps, and who is told of computed tokens: its counters, its lane, the
policy, the prefix cache. Which sequence has how many tokens, the step builder says.
"""

from __future__ import annotations

from msgspec import structs

from inflight.core.adapters import AdapterSlots
from inflight.core.kv.manager import KVCacheManager
from inflight.core.queueing.lanes import Lanes
from inflight.core.scheduling.step_draft import StepDraft
from inflight.core.sequence import NO_POSITIONS, Sequence, SequenceView
from inflight.core.types.plan import Chunk, NewRequest


class ChunkMaker:
    def __init__(self, memory: KVCacheManager, lanes: Lanes, adapters: AdapterSlots):
        self.recomputed_tokens = self.prefix_queries = self.prefix_hits = 0  # tokens, since the engine began
        self._memory, self._has_windows, self._has_state = memory, memory.has_windows, memory.has_state
        self._lanes = lanes
        self._adapters = adapters

    def add(self, draft: StepDraft, sequence: Sequence, length: int, new_blocks: tuple[int, ...], now: float) -> None:
        """The counters advance at once, so that the next plan can be made while this one runs."""
        assert sequence.row is not None
        start, prompt_tokens = sequence.num_computed, len(sequence.prompt)
        sample = int(length == sequence.num_tokens + sequence.num_pending - start and sequence.generates)
        score = sequence.plan_scores(start + length) if start < prompt_tokens else NO_POSITIONS
        pool = start + length == prompt_tokens and sequence.request.pooling is not None
        snapshots = self._memory.take_checkpoints(sequence, start + length) if self._has_state else ()
        chunk = Chunk(
            sequence.number, sequence.row, start, length, new_blocks, sample, score, (), pool, snapshots=snapshots
        )
        draft.add(chunk)
        if self._has_windows:
            draft.tell_blocks(*self._memory.new_blocks(sequence))
        sequence.num_computed = start + length
        if start < sequence.recompute_until:
            again = min(sequence.num_computed, sequence.recompute_until) - start
            sequence.timings.recomputed_tokens += again
            self.recomputed_tokens += again
        sequence.num_pending += sample
        sequence.in_flight += 1
        self._memory.publish(sequence)
        lane = self._lanes.of(sequence)
        lane.served(length)
        lane.deficit.take(length, sequence.protected)
        if start >= prompt_tokens:
            return
        if sequence.sample_index == 0 and prompt_tokens <= sequence.num_computed:
            lane.queue.release_siblings(sequence, now)
        new_prompt_tokens = min(sequence.num_computed, prompt_tokens) - max(start, sequence.charged)
        if new_prompt_tokens > 0:
            sequence.charged = sequence.num_computed
            lane.queue.policy.served(SequenceView(sequence), new_prompt_tokens, 0, now)

    def start_row(self, draft: StepDraft, sequence: Sequence) -> tuple[int, ...]:
        """The executor is told of its row, and of the blocks that its table begins with."""
        sequence.started = True
        if not sequence.recompute_until:
            sequence.timings.cached_tokens = sequence.num_computed
            self.prefix_queries += sequence.num_tokens
            self.prefix_hits += sequence.num_computed
        new = _new_request(sequence, self._slot_of(sequence))
        draft.new_requests.append(
            structs.replace(new, snapshot=self._memory.begin_from_checkpoint(sequence)) if self._has_state else new
        )
        return tuple(sequence.blocks)

    def _slot_of(self, sequence: Sequence) -> int:
        request = sequence.request
        return -1 if request.adapter is None else self._adapters.slot_of(request.request_id)


def _new_request(sequence: Sequence, adapter_slot: int) -> NewRequest:
    request, row = sequence.request, sequence.row
    assert row is not None
    return NewRequest(
        row=row,
        token_ids=sequence.token_slice(0, sequence.num_tokens),
        prompt_length=len(sequence.prompt),
        params=request.params,
        seed=request.seed,
        sample_index=sequence.sample_index,
        banned_token_ids=sequence.banned,
        bad_token_ids=request.bad_token_ids,
        pooling=request.pooling,
        grammar=request.grammar,
        second_text_at=request.second_text_at,
        adapter_slot=adapter_slot,
    )
