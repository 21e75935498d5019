"""What the backends of the host share: slots and activations in host memory, and results as the plan's types.

Knows numpy and core's results. A backend adds packed weights, the KV cache, the operations of a pass, and `sample` and
`score` over arrays of logits. Here a pass is done when `finish` is called.
"""

from __future__ import annotations

import math
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from itertools import chain
from typing import Any, Literal

import numpy as np

from inflight.core.types.logprobs import TokenLogprob, TopLogprobs
from inflight.core.types.plan import Capacity, Chunk, NewRow, Pooled, Sampled, Scored
from inflight.execution.backends import arrays
from inflight.execution.backends.bf16 import from_bf16
from inflight.execution.backends.protocol import (
    Array,
    DType,
    KVCache,
    PassResult,
    SampledBatch,
    SamplingBatch,
    ScoredBatch,
    StateCache,
)
from inflight.execution.backends.slots import PassInputs, RequestSlots

ALL_BANNED = (
    "After {position} tokens, allowed_token_ids, bad_words and min_tokens leave nothing to draw; allow more tokens."
)
UNSOUND = (
    "The model's logits after {position} tokens are not finite (NaN or infinite), so they mean no token; its weights "
    "are damaged, or its numbers overflow on this text: check the checkpoint, or try --dtype float32."
)
UNSOUND_VECTOR = (
    "The model's hidden state after {position} tokens is not finite (NaN or infinite), so that it is no vector; its "
    "weights are damaged, or its numbers overflow on this text: check the checkpoint, or try --dtype float32."
)


class HostPass:
    """The part of a pass that knows slots and chunks. It is its own result."""

    # The operations of a backend, over its own activations.
    embed: Any
    rms_norm: Any
    layer_norm: Any
    to_act: Any
    add: Any
    clear: Any
    scale: Any
    soft_cap: Any
    linear: Any
    linear_residual: Any
    gate_up: Any
    activate: Any
    experts: Any
    add_gated: Any
    by_head: Any
    rope_and_write_kv: Any
    rope_and_write_latent: Any
    attention: Any
    gate: Any
    convolve: Any
    convolve_gated: Any
    delta_rule: Any
    gather: Any

    def __init__(self, backend: HostBackend, inputs: PassInputs, slots: RequestSlots, chunks: Sequence[Chunk]):
        self._backend, self._inputs, self._slots, self._chunks = backend, inputs, slots, chunks
        self.num_tokens = len(inputs.token_ids)
        self._sampled: list[Sampled] = []
        self._has_drafts = any(chunk.draft_token_ids for chunk in chunks)
        self._draws: list[Sampled] = []  # of the chunk that is being drawn for
        self._scored: list[Scored] = []
        self._pooled: list[Pooled] = []
        self._finished = 0.0

    def sample(self, logits: Any, places: Sequence[int]) -> None:
        at = np.fromiter(places, np.int32, len(places))
        of = self._inputs.chunk_of[at]
        rows, positions = self._inputs.rows[of], self._inputs.metadata.positions[at]
        batch = self._slots.sampling(rows, positions)
        values = logits.array[: len(places)]
        drawn = self._backend.sample(values, batch)
        chosen = values[np.arange(len(rows)), drawn.token_ids]
        if not self._has_drafts:
            self._slots.append(rows, drawn.token_ids)
        all_of = zip(
            of.tolist(),
            drawn.token_ids.tolist(),
            np.isfinite(chosen).tolist(),
            batch.want_logprobs.tolist(),
            strict=True,
        )
        for row, (index, token, is_sound, wants) in enumerate(all_of):
            chunk = self._chunks[index]
            if not is_sound:
                one = _unsound(chunk.sequence_id, batch, row, positions[row] + 1, chosen[row])
            elif wants:
                logprobs = (_token_logprob(drawn, row, token, int(batch.top_logprobs[row])),)
                one = Sampled(chunk.sequence_id, (token,), logprobs)
            else:
                one = Sampled(chunk.sequence_id, (token,))
            if self._has_drafts:
                self._verify(chunk, one)
            else:
                self._sampled.append(one)

    def _verify(self, chunk: Chunk, drawn: Sampled) -> None:
        """The next draw of a chunk. With the last of them, those that count are kept."""
        self._draws.append(drawn)
        if len(self._draws) == chunk.sample:
            kept = verified(chunk.draft_token_ids, self._draws)
            self._draws = []
            self._slots.extend(chunk.row, kept.token_ids)
            self._sampled.append(kept)

    def score(self, logits: Any, places: Sequence[int]) -> None:
        at = np.fromiter(places, np.int32, len(places))
        of, positions = self._inputs.chunk_of[at], self._inputs.metadata.positions[at]
        token_ids, tops = self._slots.scoring(self._inputs.rows[of], positions)
        told = self._backend.score(logits.array[: len(places)], token_ids, tops)
        told_of = enumerate(zip(of.tolist(), positions.tolist(), token_ids.tolist(), tops.tolist(), strict=True))
        for row, (chunk, position, token_id, top) in told_of:
            entry = _token_logprob(told, row, token_id, top)
            error = UNSOUND.format(position=position + 1) if math.isnan(entry.logprob) else None
            self._scored.append(Scored(self._chunks[chunk].sequence_id, position + 1, (entry,), error))

    def pool(self, hidden: Any, places: Sequence[int]) -> None:
        of = self._inputs.chunk_of[np.fromiter(places, np.int32, len(places))]
        vectors = self._backend.float32(hidden.array[: len(places)])
        lengths = np.sqrt(np.square(vectors, dtype=np.float64).sum(axis=1))
        divisors = np.where(self._slots.normalizes(self._inputs.rows[of]) & (lengths > 0), lengths, 1)
        for index, vector, divisor in zip(of.tolist(), vectors, divisors, strict=True):
            chunk = self._chunks[index]
            if np.isfinite(vector).all():
                self._pooled.append(Pooled(chunk.sequence_id, tuple((vector / divisor).tolist())))
            else:
                error = UNSOUND_VECTOR.format(position=chunk.start + chunk.length)
                self._pooled.append(Pooled(chunk.sequence_id, (), error))

    def finish(self) -> HostPass:
        self._finished = time.perf_counter()
        return self

    def result(self) -> PassResult:
        return PassResult(self._sampled, self._scored, self._pooled, self._finished)


class HostBackend(ABC):
    dtype: DType
    depth = 1  # who would plan ahead is the one that computes

    def request_slots(self, capacity: Capacity, padding_block: int, states: StateCache | None = None) -> RequestSlots:
        return RequestSlots(capacity, padding_block, states)

    def activation(self, rows: int, width: int, kind: Literal["act", "float32"]) -> Any:
        narrow = kind == "act" and self.dtype == "bfloat16"
        return self.activation_of(arrays.empty((rows, width), np.uint16 if narrow else np.float32))

    def prepare(
        self,
        slots: RequestSlots,
        kv_cache: KVCache,
        chunks: Sequence[Chunk],
        new: Sequence[NewRow] = (),
        freed: Sequence[int] = (),
    ) -> HostPass:
        for row in freed:
            slots.free(row)
        try:
            for one in new:
                slots.start(one)
        except BaseException:  # a later pass of the step may be in flight, with rows that have not started
            slots.discard([one.row for one in new])
            raise
        return self.forward_pass(slots.gather(chunks), kv_cache, slots, chunks)

    def discard(self, slots: RequestSlots, rows: Sequence[int]) -> None:
        slots.discard(rows)

    @abstractmethod
    def activation_of(self, array: Array) -> Any:
        """An activation over memory [rows, width] of the caller's, all of whose rows count as written; `array` is that
        memory."""

    def float32(self, values: Array) -> Array:
        """act → float32."""
        return from_bf16(values) if values.dtype == np.uint16 else values

    @abstractmethod
    def forward_pass(
        self, inputs: PassInputs, kv_cache: KVCache, slots: RequestSlots, chunks: Sequence[Chunk]
    ) -> HostPass:
        """The operations of a pass over those chunks of the slots."""

    @abstractmethod
    def sample(self, logits: Array, batch: SamplingBatch) -> SampledBatch:
        """logits float32[S, V]; may be overwritten, but where the drawn token stood, its logit stands (biased or not):
        if that is not finite, the row had nothing to draw, or an infinity."""

    @abstractmethod
    def score(self, logits: Array, token_ids: Array, top_logprobs: Array) -> ScoredBatch:
        """What `sample` would report had it drawn token_ids int32[S] from logits float32[S, V], which may be
        overwritten. top_logprobs int32[S]: alternatives wanted beside each."""


def _token_logprob(told: SampledBatch | ScoredBatch, row: int, token_id: int, top: int) -> TokenLogprob:
    """What was told of a row, with the first `top` alternatives."""
    ids, values = told.top_ids[row, :top], told.top_logprobs[row, :top]
    alternatives = TopLogprobs.of_bytes(ids.tobytes(), values.tobytes()) if top else ()
    return TokenLogprob(token_id, float(told.logprobs[row]), alternatives)


def verified(drafts: Sequence[int], draws: Sequence[Sampled]) -> Sampled:
    """What counts of the draws of a chunk, one behind each draft and one before them: those up to the first that is not
    what was drafted. Of a draw that let nothing be drawn only the first is told; a later one comes again."""
    right = 0
    while right < len(drafts) and draws[right].token_ids == (drafts[right],):
        right += 1
    kept = draws[: right + 1]
    if kept[-1].error is not None:
        if not right:
            return kept[0]
        kept = kept[:-1]
    tokens = tuple(one.token_ids[0] for one in kept)
    logprobs = None if kept[0].logprobs is None else tuple(chain.from_iterable(one.logprobs or () for one in kept))
    return Sampled(kept[0].sequence_id, tokens, logprobs)


def _unsound(sequence_id: int, batch: SamplingBatch, row: int, position: int, logit: float) -> Sampled:
    added = batch.bias_values[batch.bias_offsets[row] : batch.bias_offsets[row + 1]]
    is_banned = logit == -np.inf and (batch.allowed[row] is not None or bool(np.isneginf(added).any()))
    told = ALL_BANNED if is_banned else UNSOUND
    return Sampled(sequence_id, (), error=told.format(position=position))
