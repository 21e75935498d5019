"""The model executor: runs a plan on a decoder and gives back its tokens.

Knows plans, row state, the decoder, scoring and sampling; not why the plan looks as it does. One step is: take up the
plan's rows and blocks, one forward pass over all its tokens, logits of the positions that score, then of the rows that
sample (in slabs, so that a wide batch over a large vocabulary needs little memory), sampling, and the new tokens go
back into the rows.
"""

from __future__ import annotations

import logging
import time

import numpy as np

from inflight.core.types.logprobs import TokenLogprob
from inflight.core.types.plan import BatchPlan, Capacity, Chunk, Sampled, Scored, StepResult, Transferred
from inflight.execution.decoder import Decoder
from inflight.execution.ops.protocol import Array, KVArena, OpSet, SampledBatch, SamplingBatch
from inflight.execution.rows import RowStore
from inflight.execution.scoring import UNSOUND, PromptScorer, joined, token_logprob
from inflight.execution.slices import slices

ALL_BANNED = (
    "After {position} tokens, allowed_token_ids, bad_words and min_tokens leave nothing to draw; allow more tokens."
)
log = logging.getLogger(__name__)


class _Done:
    def __init__(self, result: StepResult):
        self._result = result

    def result(self) -> StepResult:
        return self._result


class ModelExecutor:
    """Runs at depth 1: the CPU that would plan ahead is the one that computes."""

    def __init__(self, decoder: Decoder, ops: OpSet, arena: KVArena, capacity: Capacity):
        """The decoder's arena holds the capacity's blocks, then one that padding writes to, then the host blocks (on a
        CPU both memories are the same, but the copies are real)."""
        self._decoder = decoder
        self._ops = ops
        self._arena = arena
        self._capacity = capacity
        self._rows = RowStore(capacity, capacity.num_blocks)
        self._scorer = PromptScorer(decoder, ops, self._rows)

    @property
    def capacity(self) -> Capacity:
        return self._capacity

    def submit(self, plan: BatchPlan) -> _Done:
        started = time.perf_counter()
        try:
            (sampled, scored), error = self._run(plan), None
        except Exception as fault:  # whatever breaks a step must end its requests, not the engine
            log.exception("step %d with %d tokens failed", plan.step, plan.tokens)
            sampled, scored = (), ()
            error = f"Step {plan.step} with {plan.tokens} tokens failed: {type(fault).__name__}: {fault}"
        return _Done(StepResult(plan.step, sampled, time.perf_counter() - started, error, scored))

    def poll(self, seconds: float = 0.0) -> tuple[Transferred, ...] | None:
        """Transfers are done within their step."""
        return None

    def close(self) -> None:
        """Nothing outlives the executor's own references."""

    def _run(self, plan: BatchPlan) -> tuple[tuple[Sampled, ...], tuple[Scored, ...]]:
        if plan.transfers:
            self._move(plan)
        for row in plan.freed_rows:
            self._rows.free(row)
        for new in plan.new_rows:
            self._rows.start(new)
        padding = [Chunk(-1, self._rows.padding_row, 0, length, (), 0) for length in plan.padding]
        sampled: list[Sampled] = []
        scored: list[Scored] = []
        for part in slices((*plan.chunks, *padding), self._decoder.max_tokens):
            offsets = self._forward(part)
            scored += self._scorer.score(part, offsets)
            sampled += self._sample(part, offsets[1:] - 1)
        return tuple(sampled), joined(scored)

    def _move(self, plan: BatchPlan) -> None:
        """What is stored first: it may make room for what is loaded."""
        first_host = self._capacity.num_blocks + 1
        if stored := plan.copies("store"):
            self._arena.copy_blocks([block for block, _ in stored], [first_host + host for _, host in stored])
        if loaded := plan.copies("load"):
            self._arena.copy_blocks([first_host + host for _, host in loaded], [block for block, _ in loaded])

    def _forward(self, chunks: list[Chunk]) -> Array:
        """Computes the chunks; returns where the tokens of each begin, int32[C + 1]."""
        token_ids, layout = self._rows.layout(chunks)
        self._decoder.forward(token_ids, layout)
        return layout.offsets

    def _sample(self, chunks: list[Chunk], last_tokens: Array) -> list[Sampled]:
        wanted = [index for index, chunk in enumerate(chunks) if chunk.sample]
        sampled: list[Sampled] = []
        for start in range(0, len(wanted), self._decoder.max_logit_rows):
            part = wanted[start : start + self._decoder.max_logit_rows]
            sampled += self._sample_slab([chunks[index] for index in part], last_tokens[part])
        return sampled

    def _sample_slab(self, chunks: list[Chunk], hidden_rows: Array) -> list[Sampled]:
        rows = np.array([chunk.row for chunk in chunks], np.int32)
        batch = self._rows.sampling(rows)
        logits = self._decoder.logits(hidden_rows)
        drawn = self._ops.sample(logits, batch)
        self._rows.append(rows, drawn.token_ids)
        tokens = drawn.token_ids.tolist()
        chosen = logits[np.arange(len(rows)), drawn.token_ids]
        sound = np.isfinite(chosen)
        if not sound.all():
            return [
                _one_sampled(chunk, drawn, batch, index)
                if sound[index]
                else _unsound(chunk, batch, index, chosen[index])
                for index, chunk in enumerate(chunks)
            ]
        if not batch.want_logprobs.any():
            return [Sampled(chunk.sequence_id, (token,)) for chunk, token in zip(chunks, tokens, strict=True)]
        return [_one_sampled(chunk, drawn, batch, index) for index, chunk in enumerate(chunks)]


def _one_sampled(chunk: Chunk, drawn: SampledBatch, batch: SamplingBatch, row: int) -> Sampled:
    return Sampled(chunk.sequence_id, (int(drawn.token_ids[row]),), _logprobs(drawn, batch, row))


def _unsound(chunk: Chunk, batch: SamplingBatch, row: int, logit: float) -> Sampled:
    added = batch.bias_values[batch.bias_offsets[row] : batch.bias_offsets[row + 1]]
    is_banned = logit == -np.inf and bool(np.isneginf(added).any())
    told = ALL_BANNED if is_banned else UNSOUND
    return Sampled(chunk.sequence_id, (), error=told.format(position=chunk.start + chunk.length))


def _logprobs(drawn: SampledBatch, batch: SamplingBatch, row: int) -> tuple[TokenLogprob, ...] | None:
    if not batch.want_logprobs[row]:
        return None
    return (token_logprob(drawn, row, int(drawn.token_ids[row]), int(batch.top_logprobs[row])),)


def copy_seconds(arena: KVArena, blocks: int = 8) -> float:
    """Measured time to copy one block within the arena, which must hold twice as many as are tried."""
    blocks = min(blocks, arena.num_blocks // 2)
    best = float("inf")
    for _ in range(3):  # the first touches the pages
        started = time.perf_counter()
        arena.copy_blocks(list(range(blocks)), list(range(blocks, 2 * blocks)))
        best = min(best, time.perf_counter() - started)
    return best / blocks
