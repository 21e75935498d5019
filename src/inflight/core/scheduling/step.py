"""The step under construction: what is left of its budget, and the chunks so far."""

from __future__ import annotations

from collections import defaultdict
from itertools import zip_longest

from msgspec import structs

from inflight.core.kv.manager import KVCacheManager
from inflight.core.scheduling.state import SchedulerState
from inflight.core.sequence import NO_POSITIONS, Sequence, SequenceView
from inflight.core.strategies import StepShape
from inflight.core.types.plan import Chunk, NewRequest


class Step:
    """A plan that grows. Adding a chunk advances its sequence, so that the next plan can be made before this one ran.

    Attributes:
        budget: Tokens that are left.
        chunks: What is computed so far, in the plan's order.
        new_requests: Sequences whose first chunk here is also their first since they took a row.
        served: Numbers of the sequences with a chunk.
        prompt_tokens: By lane.
    """

    __slots__ = (
        "_completes_prompt",
        "_state",
        "budget",
        "chunks",
        "new_requests",
        "number",
        "prompt_tokens",
        "served",
        "shape",
    )

    def __init__(self, number: int, shape: StepShape, state: SchedulerState):
        self.number, self.shape, self._state = number, shape, state
        self.budget = shape.token_budget
        self.chunks: list[Chunk] = []
        self.new_requests: list[NewRequest] = []
        self.served: set[int] = set()
        self.prompt_tokens: defaultdict[str, int] = defaultdict(int)
        self._completes_prompt = False  # of a foreground lane: its first token waits for the end of this step

    # -- what is left -------------------------------------------------------------------------------------------

    def prompt_budget(self, quota: int, min_tokens: int, leave: int) -> int:
        """Return the tokens of a quota that prompts may have now, min_tokens of them even where the step ends early.

        leave: Tokens of the budget that are left for others.
        """
        left = min(self.budget - leave, quota)
        if not (self._completes_prompt and self.shape.early_end):
            return left
        used = self.shape.token_budget - self.budget + leave
        return min(left, max(min_tokens, self.shape.early_end - used))

    def has_room_for(self, newcomer: Sequence, budget: int, leave: int) -> bool:
        """Return whether a newcomer may have tokens: some, or all where prompts are whole and another has joined."""
        if budget <= 0:
            return False
        return not self.shape.whole_prompts or not self.new_requests or newcomer.num_tokens <= self.budget - leave

    def prompt_length(self, sequence: Sequence, budget: int, max_chunk: int | None) -> int:
        """Return the tokens that a sequence inside its prompt has in this step."""
        if self.shape.whole_prompts:
            return sequence.num_uncomputed
        return min(sequence.num_uncomputed, budget if max_chunk is None else min(budget, max_chunk))

    # -- what is added ------------------------------------------------------------------------------------------

    def start_row(self, sequence: Sequence) -> tuple[int, ...]:
        """Add a sequence's row; return the blocks that its table begins with."""
        state, memory = self._state, self._state.memory
        sequence.started = True
        if not sequence.recompute_until:
            sequence.timings.cached_tokens = sequence.num_computed
            state.counts.prefix_queries += sequence.num_tokens
            state.counts.prefix_hits += sequence.num_computed
        request, row = sequence.request, sequence.row
        assert row is not None
        self.new_requests.append(
            NewRequest(
                row=row,
                token_ids=sequence.token_slice(0, sequence.num_tokens),
                prompt_length=len(sequence.prompt),
                params=request.params,
                seed=request.seed,
                sample_index=sequence.sample_index,
                banned_token_ids=sequence.banned,
                bad_token_ids=request.bad_token_ids,
                pooling=request.pooling,
                snapshot=memory.begin_from_checkpoint(sequence) if memory.has_state else -1,
                grammar=request.grammar,
                second_text_at=request.second_text_at,
                adapter_slot=-1 if request.adapter is None else state.adapters.slot_of(request.request_id),
            )
        )
        return tuple(sequence.blocks)

    def add_chunk(self, sequence: Sequence, length: int, new_blocks: tuple[int, ...]) -> None:
        """Compute a sequence's next tokens; sample behind them where no known token is left."""
        assert sequence.row is not None
        memory = self._state.memory
        start, num_prompt_tokens = sequence.num_computed, len(sequence.prompt)
        end = start + length
        sample = int(end == sequence.num_tokens + sequence.num_pending and sequence.generates)
        score = sequence.plan_scores(end) if start < num_prompt_tokens else NO_POSITIONS
        pool = end == num_prompt_tokens and sequence.request.pooling is not None
        checkpoints = memory.take_checkpoints(sequence, end) if memory.has_state else ()
        window_blocks: tuple[tuple[int, ...], ...] = ()
        if memory.has_windows:
            new_blocks, window_blocks = memory.new_blocks(sequence)
        self.chunks.append(
            Chunk(
                sequence.number, sequence.row, start, length, new_blocks, sample, score, (), pool, window_blocks,
                checkpoints,
            )
        )  # fmt: skip
        self.served.add(sequence.number)
        self.budget -= length
        sequence.num_computed = end
        sequence.num_pending += sample
        sequence.in_flight += 1
        sequence.sat_out = 0
        if start < sequence.recompute_until:
            again = min(end, sequence.recompute_until) - start
            sequence.timings.recomputed_tokens += again
            self._state.counts.recomputed_tokens += again
        memory.publish(sequence)
        self._state.lanes.of(sequence).served(length)
        if start < num_prompt_tokens:
            self._charge_prompt(sequence, start)

    def add_decode(self, sequence: Sequence, new_blocks: tuple[int, ...]) -> None:
        """Compute the one token that a sequence lacks: as `add_chunk`, with less to look at."""
        start, memory = sequence.num_computed, self._state.memory
        if memory.has_windows or memory.has_state or start < max(len(sequence.prompt), sequence.recompute_until):
            self.add_chunk(sequence, 1, new_blocks)
            return
        self.chunks.append(decode_chunk(sequence, new_blocks, memory))
        self.served.add(sequence.number)
        self.budget -= 1
        sequence.sat_out = 0
        self._state.lanes.of(sequence).served(1)

    def add_prompt_chunk(self, sequence: Sequence, budget: int) -> None:
        """Compute as much of a prompt as fits into a budget; nothing where its windows find no blocks."""
        lane = self._state.lanes.of(sequence)
        length = self.prompt_length(sequence, budget, lane.settings.chunk)
        # Groups without a window have their blocks since it joined.
        if self._state.memory.has_windows and self._state.running.allocate_or_preempt(sequence, length) is None:
            return
        new_blocks = () if sequence.started else self.start_row(sequence)
        self.add_chunk(sequence, length, new_blocks)
        self.prompt_tokens[lane.settings.name] += length
        # Further samples of the prompt and background work do not end a step.
        if self.chunks[-1].sample and not sequence.sample_index and not lane.settings.background:
            self._completes_prompt = True

    def add_drafts(self, index: int, sequence: Sequence, num_drafts: int, token_ids: tuple[int, ...]) -> None:
        """Add drafts to a chunk: these tokens, or as many as the executor makes; none where blocks are missing."""
        memory, chunk = self._state.memory, self.chunks[index]
        new_blocks = memory.allocate(sequence, sequence.num_computed + num_drafts)
        if new_blocks is None:  # the content of one is stored first, and that has begun
            return
        window_blocks: tuple[tuple[int, ...], ...] = ()
        if memory.has_windows:
            new_blocks, window_blocks = memory.new_blocks(sequence)
        self.chunks[index] = structs.replace(
            chunk,
            length=chunk.length + num_drafts,
            new_blocks=chunk.new_blocks + new_blocks,
            sample=chunk.sample + num_drafts,
            draft_token_ids=token_ids,
            num_drafts=num_drafts,
            window_blocks=tuple(a + b for a, b in zip_longest(chunk.window_blocks, window_blocks, fillvalue=())),
        )
        self.budget -= num_drafts
        sequence.draft(num_drafts)
        self._state.lanes.of(sequence).served(num_drafts)

    def padding(self, num_rows: int) -> tuple[int, ...]:
        """Return what fills each row up to the longest chunk; rows without a chunk are padding from end to end."""
        longest = max(chunk.length for chunk in self.chunks)
        short = [longest - chunk.length for chunk in self.chunks if chunk.length < longest]
        return (*short, *[longest] * (num_rows - len(self.chunks)))

    def _charge_prompt(self, sequence: Sequence, start: int) -> None:
        """Report prompt tokens to the policy, each once; release the samples that wait for a whole prompt."""
        num_prompt_tokens = len(sequence.prompt)
        queue = self._state.lanes.of(sequence).queue
        if sequence.sample_index == 0 and num_prompt_tokens <= sequence.num_computed:
            queue.release_siblings(sequence)
        new_tokens = min(sequence.num_computed, num_prompt_tokens) - max(start, sequence.charged)
        if new_tokens > 0:
            sequence.charged = sequence.num_computed
            if queue.counts:
                queue.policy.served(SequenceView(sequence), new_tokens, 0, self._state.time.now)


def decode_chunk(sequence: Sequence, new_blocks: tuple[int, ...], memory: KVCacheManager) -> Chunk:
    """Advance a sequence behind its prompt by a token, and return its chunk; `Step.add_chunk` does so for any chunk."""
    start, row = sequence.num_computed, sequence.row
    assert row is not None, "it runs"
    sequence.num_computed = start + 1
    sequence.num_pending += 1
    sequence.in_flight += 1
    if not (start + 1) % memory.block_size:
        memory.publish(sequence)
    return Chunk(sequence.number, row, start, 1, new_blocks, 1)
