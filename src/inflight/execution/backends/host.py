"""Base of the backends of the host: activations in host memory, and results as the plan's types.

A backend adds packed weights, the KV cache, the operations of a pass, and `sample` and `score` over arrays of logits. A
pass is done when `finish` is called.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, Generic, Literal, TypeVar

import numpy as np

from inflight.core.types.plan import Capacity, Chunk
from inflight.execution.backends.bf16 import from_bf16
from inflight.execution.backends.protocol import (
    Array,
    DType,
    KVCache,
    SampledBatch,
    SamplingBatch,
    ScoredBatch,
    StateCache,
)
from inflight.execution.batch.input_batch import InputBatch
from inflight.execution.batch.pass_layout import PassInputs
from inflight.execution.batch.results import DrawnRows, PassOutcome, PooledRows, ScoredRows
from inflight.execution.program import Program

_LINE = 64  # bytes
P = TypeVar("P", bound="HostPass")


def empty(shape: tuple[int, ...], dtype: Any) -> Array:
    """Return an array as `numpy.empty` does, C-contiguous, that begins at a multiple of 64 bytes.

    Numpy aligns large arrays to 16 bytes, so that every vector of 64 that a kernel stores lies across two cache lines;
    products of 32 rows take 2 % longer then."""
    nbytes = math.prod(shape) * np.dtype(dtype).itemsize
    memory = np.empty(nbytes + _LINE - 1, np.uint8)
    start = -memory.ctypes.data % _LINE
    made: Array = memory[start : start + nbytes].view(dtype).reshape(shape)
    return made


class HostPass:
    """The part of a pass that knows the input batch and chunks (`protocol.Pass`); a backend adds its operations."""

    def __init__(self, backend: HostBackend[Any], inputs: PassInputs, batch: InputBatch, chunks: Sequence[Chunk]):
        self._backend, self._inputs, self._batch = backend, inputs, batch
        self.token_ids, self.positions = inputs.token_ids, inputs.metadata.positions
        self.num_tokens = len(inputs.token_ids)
        self.draws_all = bool(chunks) and all(one.sample == one.length and not one.score for one in chunks)
        self._outcome = PassOutcome(chunks)

    def sample(self, logits: Any, places: Sequence[int], allowed: Sequence[Array | None] | None = None) -> None:
        of, slots, positions = self._placed(places)
        settings = self._batch.sampling(slots, positions, allowed)
        values = logits.array[: len(places)]
        drawn = self._backend.sample(values, settings)
        chosen = values[np.arange(len(slots)), drawn.token_ids]
        self._batch.keep(slots, positions, drawn.token_ids)
        self._outcome.drawn.append(
            DrawnRows(
                of,
                positions,
                settings.want_logprobs,
                settings.top_logprobs,
                drawn.token_ids,
                np.isfinite(chosen),
                lambda row: _was_banned(settings, row, chosen[row]),
                drawn,
            )
        )

    def score(self, logits: Any, places: Sequence[int]) -> None:
        of, slots, positions = self._placed(places)
        token_ids, tops = self._batch.scoring(slots, positions)
        scores = self._backend.score(logits.array[: len(places)], token_ids, tops)
        self._outcome.scored.append(ScoredRows(of, positions, tops, token_ids, scores))

    def pool(self, hidden: Any, places: Sequence[int]) -> None:
        of, slots, _ = self._placed(places)
        vectors = self._backend.float32(hidden.array[: len(places)]).copy()  # the next pass overwrites them
        self._outcome.pooled.append(PooledRows(of, self._batch.pooling(slots), vectors))

    def read(self, hidden: Any, places: Sequence[int]) -> None:
        self._outcome.states = hidden.array[np.fromiter(places, np.int64, len(places))]

    def finish(self) -> PassOutcome:
        return self._outcome.finish()

    def _placed(self, places: Sequence[int]) -> tuple[Array, Array, Array]:
        """Return the chunks, the request slots and the positions of these tokens of the pass."""
        of, positions = self._inputs.chunk_of, self._inputs.metadata.positions
        if len(places) < len(of):
            at = np.fromiter(places, np.int32, len(places))
            of, positions = of[at], positions[at]
        return of, self._inputs.rows[of], positions


def _was_banned(settings: SamplingBatch, row: int, logit: float) -> bool:
    """Return whether a drawn token's logit, which is not finite, is what bans made it."""
    added = settings.bias_values[settings.bias_offsets[row] : settings.bias_offsets[row + 1]]
    return bool(logit == -np.inf and (settings.allowed[row] is not None or np.isneginf(added).any()))


class HostDevice:
    """A device that is the host: it has no memory of its own, and its work is done when a call returns."""

    batch_invariant = True
    packs_fp8 = False
    depth = 1  # who would plan ahead is the one that computes
    asynchronous_copies = False

    def block_memory(self, kv_cache: KVCache) -> memoryview | None:
        """Return None: blocks do not lie one behind the other."""
        return None

    def host_memory(self, kv_cache: KVCache, states: StateCache | None, snapshots: int) -> None:
        """Return None: the device's memory is the host's."""

    def own_memory(self) -> None:
        """Return None: the memory is the host's."""

    def peak_bytes(self, run: Callable[[], None]) -> int:
        """Run and return 0: the device has no memory of its own."""
        run()
        return 0

    def wait(self) -> None:
        """Return at once."""

    def failure(self) -> None:
        """Return None: a processor that fails takes this process along."""

    def input_batch(self, capacity: Capacity, padding_block: int, states: StateCache | None = None) -> InputBatch:
        return InputBatch(capacity, padding_block, states)

    def compile(self, program: Program) -> Any:
        """Return the program as it is now: operations that are recorded behind do not join it."""
        return Program.joined([program])


class HostBackend(HostDevice, ABC, Generic[P]):
    """A backend in the host's memory. P: its passes."""

    dtype: DType

    def activation(self, rows: int, width: int, kind: Literal["act", "float32"]) -> Any:
        narrow = kind == "act" and self.dtype == "bfloat16"
        return self.activation_of(empty((rows, width), np.uint16 if narrow else np.float32))

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
