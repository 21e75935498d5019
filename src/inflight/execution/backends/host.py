"""Base of the backends of the host: activations in host memory, and results as the plan's types.

A backend adds packed weights, the KV cache, the operations of a pass, and `sample` and `score` over arrays of logits. A
pass is done when `finish` is called.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, Generic, Literal, TypeVar

import numpy as np

from inflight.core.types.plan import Capacity, Chunk, Pooled, Sampled, Scored
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
from inflight.execution.backends.results import ChunkDraws, pooled, scored, token_logprob, unsound, was_banned
from inflight.execution.batch.input_batch import InputBatch
from inflight.execution.batch.pass_layout import PassInputs
from inflight.execution.program import Program, run_by_name

P = TypeVar("P", bound="HostPass")


class HostPass:
    """The part of a pass that knows the input batch and chunks (`protocol.Pass`); a backend adds its operations. It is
    its own result."""

    def __init__(self, backend: HostBackend[Any], inputs: PassInputs, batch: InputBatch, chunks: Sequence[Chunk]):
        self._backend, self._inputs, self._batch, self._chunks = backend, inputs, batch, chunks
        self.num_tokens = len(inputs.token_ids)
        self._draws = ChunkDraws()
        self._scored: list[Scored] = []
        self._pooled: list[Pooled] = []
        self._finished = 0.0

    def run(self, program: Program, places: Sequence[int] = (), texts: Sequence[range] = ()) -> None:
        run_by_name(self, program, places, texts)

    def sample(self, logits: Any, places: Sequence[int], allowed: Sequence[Array | None] | None = None) -> None:
        at = np.fromiter(places, np.int32, len(places))
        of = self._inputs.chunk_of[at]
        rows, positions = self._inputs.rows[of], self._inputs.metadata.positions[at]
        batch = self._batch.sampling(rows, positions, allowed)
        values = logits.array[: len(places)]
        drawn = self._backend.sample(values, batch)
        chosen = values[np.arange(len(rows)), drawn.token_ids]
        self._batch.keep(rows, positions, drawn.token_ids)
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
                banned = was_banned(batch, row, chosen[row])
                one = unsound(chunk.sequence_id, int(positions[row]) + 1, banned)
            elif wants:
                logprobs = (token_logprob(drawn, row, token, int(batch.top_logprobs[row])),)
                one = Sampled(chunk.sequence_id, (token,), logprobs)
            else:
                one = Sampled(chunk.sequence_id, (token,))
            self._draws.add(chunk, one)

    def score(self, logits: Any, places: Sequence[int]) -> None:
        at = np.fromiter(places, np.int32, len(places))
        of, positions = self._inputs.chunk_of[at], self._inputs.metadata.positions[at]
        token_ids, tops = self._batch.scoring(self._inputs.rows[of], positions)
        scores = self._backend.score(logits.array[: len(places)], token_ids, tops)
        rows = enumerate(zip(of.tolist(), positions.tolist(), token_ids.tolist(), tops.tolist(), strict=True))
        for row, (chunk, position, token_id, top) in rows:
            self._scored.append(scored(self._chunks[chunk], position, token_logprob(scores, row, token_id, top)))

    def pool(self, hidden: Any, places: Sequence[int]) -> None:
        of = self._inputs.chunk_of[np.fromiter(places, np.int32, len(places))]
        vectors = self._backend.float32(hidden.array[: len(places)])
        chunks = [self._chunks[index] for index in of.tolist()]
        self._pooled += pooled(chunks, vectors, self._batch.pooling(self._inputs.rows[of]))

    def finish(self) -> HostPass:
        self._finished = time.perf_counter()
        return self

    def result(self) -> PassResult:
        return PassResult(self._draws.sampled, self._scored, self._pooled, self._finished)


class HostBackend(ABC, Generic[P]):
    """P: its passes."""

    dtype: DType
    batch_invariant = True
    packs_fp8 = False
    depth = 1  # who would plan ahead is the one that computes
    asynchronous_copies = False  # nor can anybody copy beside

    def block_memory(self, kv_cache: KVCache) -> memoryview | None:
        """None: they do not lie one behind the other."""
        return None

    def own_memory(self) -> None:
        """Return None: the memory is the host's."""

    def peak_bytes(self, run: Callable[[], None]) -> int:
        """Run and return 0: the device has no memory of its own."""
        run()
        return 0

    def wait(self) -> None:
        """Return at once: work is done when the call that asked for it returns."""

    def failure(self) -> None:
        """Return None: a processor that fails takes this process along."""

    def input_batch(self, capacity: Capacity, padding_block: int, states: StateCache | None = None) -> InputBatch:
        return InputBatch(capacity, padding_block, states)

    def activation(self, rows: int, width: int, kind: Literal["act", "float32"]) -> Any:
        narrow = kind == "act" and self.dtype == "bfloat16"
        return self.activation_of(arrays.empty((rows, width), np.uint16 if narrow else np.float32))

    def compile(self, program: Program) -> Program:
        """Return the program as it is."""
        return program

    def move_rows(self, source: Any, rows: Array, target: Any, places: Array) -> None:
        target.array[places] = source.array[rows]

    def spread(self, token_ids: Array, vocab_size: int, most: int) -> Callable[[Any, int], Any]:
        all_logits = np.full((most, vocab_size), -np.inf, np.float32)

        def spread(logits: Any, rows: int) -> Any:
            all_logits[:rows] = -np.inf  # sampling may have written over them
            all_logits[:rows, token_ids] = logits.array[:rows]
            return self.activation_of(all_logits)

        return spread

    def prepare(self, batch: InputBatch, kv_cache: KVCache, chunks: Sequence[Chunk]) -> P:
        return self.forward_pass(batch.gather(chunks, kv_cache.shape.groups), kv_cache, batch, chunks)

    @abstractmethod
    def activation_of(self, array: Array) -> Any:
        """Wrap memory [rows, width] of the caller as an activation; all its rows count as written. `array` is that
        memory."""

    def float32(self, values: Array) -> Array:
        """act → float32."""
        return from_bf16(values) if values.dtype == np.uint16 else values

    @abstractmethod
    def forward_pass(self, inputs: PassInputs, kv_cache: KVCache, batch: InputBatch, chunks: Sequence[Chunk]) -> P:
        """Return the operations of a pass over those chunks of the batch."""

    @abstractmethod
    def sample(self, logits: Array, batch: SamplingBatch) -> SampledBatch:
        """logits float32[S, V]; may be overwritten, but where the drawn token stood, its logit stands (biased or not):
        if that is not finite, the row had nothing to draw, or an infinity."""

    @abstractmethod
    def score(self, logits: Array, token_ids: Array, top_logprobs: Array) -> ScoredBatch:
        """Return what `sample` would report if it had drawn token_ids int32[S] from logits float32[S, V], which may be
        overwritten. top_logprobs int32[S]: alternatives wanted beside each."""
