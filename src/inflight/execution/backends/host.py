"""What the backends of the host share: slots and activations in host memory, and results as the plan's types.

Knows numpy and core's results. A backend adds packed weights, the KV cache, the operations of a pass, and `sample` and
`score` over arrays of logits. Here a pass is done when `finish` is called.
"""

from __future__ import annotations

import math
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np

from inflight.core.types.logprobs import TokenLogprob, TopLogprobs
from inflight.core.types.plan import Capacity, Chunk, NewRow, Sampled, Scored
from inflight.execution.backends import arrays
from inflight.execution.backends.protocol import (
    Array,
    DType,
    KVCache,
    PassResult,
    SampledBatch,
    SamplingBatch,
    ScoredBatch,
)
from inflight.execution.backends.slots import PassInputs, RequestSlots

ALL_BANNED = (
    "After {position} tokens, allowed_token_ids, bad_words and min_tokens leave nothing to draw; allow more tokens."
)
UNSOUND = (
    "The model's logits after {position} tokens are not finite (NaN or infinite), so they mean no token; its weights "
    "are damaged, or its numbers overflow on this text: check the checkpoint, or try --dtype float32."
)


class HostPass:
    """The part of a pass that knows slots and chunks. It is its own result."""

    # The operations of a backend, over its own activations.
    embed: Any
    rms_norm: Any
    linear: Any
    linear_residual: Any
    gate_up: Any
    rope_and_write_kv: Any
    attention: Any
    gather: Any

    def __init__(self, backend: HostBackend, inputs: PassInputs, slots: RequestSlots, chunks: Sequence[Chunk]):
        self._backend, self._inputs, self._slots, self._chunks = backend, inputs, slots, chunks
        self.num_tokens = len(inputs.token_ids)
        self._sampled: list[Sampled] = []
        self._scored: list[Scored] = []
        self._finished = 0.0

    def sample(self, logits: Any, places: Sequence[int]) -> None:
        of = self._inputs.chunk_of[np.fromiter(places, np.int32, len(places))]
        rows = self._inputs.rows[of]
        batch = self._slots.sampling(rows)
        values = logits.array[: len(places)]
        drawn = self._backend.sample(values, batch)
        self._slots.append(rows, drawn.token_ids)
        chosen = values[np.arange(len(rows)), drawn.token_ids]
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
                self._sampled.append(_unsound(chunk, batch, row, chosen[row]))
            elif wants:
                logprobs = (_token_logprob(drawn, row, token, int(batch.top_logprobs[row])),)
                self._sampled.append(Sampled(chunk.sequence_id, (token,), logprobs))
            else:
                self._sampled.append(Sampled(chunk.sequence_id, (token,)))

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

    def finish(self) -> HostPass:
        self._finished = time.perf_counter()
        return self

    def result(self) -> PassResult:
        return PassResult(self._sampled, self._scored, self._finished)


class HostBackend(ABC):
    dtype: DType
    depth = 1  # who would plan ahead is the one that computes

    def request_slots(self, capacity: Capacity, padding_block: int) -> RequestSlots:
        return RequestSlots(capacity, padding_block)

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
        for one in new:
            slots.start(one)
        return self.forward_pass(slots.gather(chunks), kv_cache, slots, chunks)

    def discard(self, slots: RequestSlots, rows: Sequence[int]) -> None:
        slots.discard(rows)

    @abstractmethod
    def activation_of(self, array: Array) -> Any:
        """An activation over memory [rows, width] of the caller's, all of whose rows count as written; `array` is that
        memory."""

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


def _unsound(chunk: Chunk, batch: SamplingBatch, row: int, logit: float) -> Sampled:
    added = batch.bias_values[batch.bias_offsets[row] : batch.bias_offsets[row + 1]]
    is_banned = logit == -np.inf and bool(np.isneginf(added).any())
    told = ALL_BANNED if is_banned else UNSOUND
    return Sampled(chunk.sequence_id, (), error=told.format(position=chunk.start + chunk.length))
