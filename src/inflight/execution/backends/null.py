"""The backend that computes nothing: every pass is over at once, and tokens come by a rule.

What is left of an engine's time is its own. The token after position p of a
sequence is a function of the token there and of p, so that it depends on nothing else, as in a model. Log-probabilities
are 0, without alternatives, and so is every vector. (`testing.null` is another thing: an executor that notices every
mistake in a plan.)
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from inflight.core.types.plan import Chunk, Pooled, Sampled, Scored
from inflight.core.types.sampling import TokenLogprob
from inflight.execution.backends.host import HostDevice
from inflight.execution.backends.matrices import Matrix, Rows
from inflight.execution.backends.protocol import (
    Array,
    Delta,
    DType,
    Gating,
    Hold,
    KVCache,
    KVShape,
    LayerState,
    PassResult,
    RopeTable,
    Routing,
)
from inflight.execution.batch.input_batch import InputBatch
from inflight.execution.batch.results import ChunkDraws
from inflight.execution.program import Program


@dataclass(frozen=True, slots=True)
class Nothing:
    """Stands for weights and activations."""

    rows: int = 0
    columns: int = 0
    nbytes: int = 0
    linear: Nothing | None = None


@dataclass(frozen=True, slots=True)
class NullKVCache:
    shape: KVShape
    num_blocks: int
    nbytes: int = 0


@dataclass(frozen=True, slots=True)
class NullStates:
    nbytes: int = 0
    snapshot_memory: None = None

    def begin(self, row: int, snapshot: int) -> None:
        """Do nothing: states have no contents."""


class NullBackend(HostDevice):
    name = "null"

    def __init__(self, dtype: DType = "bfloat16", threads: int = 1):
        self.dtype: DType = dtype
        self.threads = threads

    def pack_vector(self, values: Array) -> Nothing:
        return Nothing(len(values))

    def pack_rope(self, table: RopeTable) -> Nothing:
        return Nothing()

    def pack_linear(
        self, parts: Sequence[Matrix], bias: Array | None = None, hold: Hold = "act", group: int = 32
    ) -> Nothing:
        return Nothing(sum(part.shape[0] for part in parts), parts[0].shape[1])

    def pack_gate_up(
        self, gate: Matrix, up: Matrix, hold: Hold = "act", group: int = 32, bias: Array | None = None
    ) -> Nothing:
        return Nothing(gate.shape[0], gate.shape[1])

    def pack_experts(
        self, gate_up: Sequence[Nothing], down: Sequence[Nothing], routing: Routing, gating: Gating = "silu"
    ) -> Nothing:
        return Nothing()

    def pack_heads(self, weights: Sequence[Nothing]) -> Nothing:
        return Nothing(weights[0].rows, weights[0].columns)

    def pack_table(self, table: Matrix, hold: Hold = "act", group: int = 32) -> Nothing:
        size = table.shape[0], table.shape[1]
        return Nothing(*size, linear=Nothing(*size))

    def pack_rows(self, pieces: Iterable[Rows], rows: int, columns: int, share: int = 0) -> Nothing:
        return Nothing(rows, columns)

    def pack_adapter(self, deltas: Iterable[Delta]) -> Nothing:
        for _ in deltas:
            pass
        return Nothing()

    def finish_packing(self) -> None:
        pass

    def bytes_per_block(self, shape: KVShape) -> int:
        """Return the bytes of a block in bf16, so that as many blocks are allocated as for a model that is computed."""
        return shape.offsets(lambda layer: 2 * shape.block_size * layer.elements)[1]

    def kv_cache(self, shape: KVShape, num_blocks: int, host_blocks: int = 0) -> NullKVCache:
        return NullKVCache(shape, num_blocks + host_blocks)

    def bytes_per_state(self, layers: Sequence[LayerState | None]) -> int:
        """Return the bytes of a state in bf16 and float32, as of a model that is computed."""
        states = [one for one in layers if one is not None]
        return sum(2 * one.inputs * one.channels + 4 * one.heads * one.key_dim * one.value_dim for one in states)

    def state_cache(self, layers: Sequence[LayerState | None], rows: int, snapshots: int) -> NullStates:
        return NullStates()

    def activation(self, rows: int, width: int, kind: Literal["act", "float32"]) -> Nothing:
        return Nothing(rows, width)

    def move_rows(self, source: Any, rows: Array, target: Any, places: Array) -> None:
        """Do nothing: memory has no contents."""

    def spread(self, token_ids: Array, vocab_size: int, most: int) -> Callable[[Any, int], Nothing]:
        return lambda logits, rows: Nothing(rows, vocab_size)

    def copy_blocks(self, kv_cache: KVCache, sources: Sequence[int], destinations: Sequence[int]) -> None:
        """Do nothing: memory has no contents."""

    def prepare(self, batch: InputBatch, kv_cache: KVCache, chunks: Sequence[Chunk]) -> NullPass:
        batch.put_drafts(chunks)
        return NullPass(batch, chunks)


class NullPass:
    """It is its own result."""

    def __init__(self, batch: InputBatch, chunks: Sequence[Chunk]):
        self._batch = batch
        self._places = [(one, position) for one in chunks for position in range(one.start, one.start + one.length)]
        self.num_tokens, self.draws_all = len(self._places), False
        self._draws = ChunkDraws()
        self._scored: list[Scored] = []
        self._pooled: list[Pooled] = []

    def run(self, program: Program, places: Sequence[int] = (), texts: Sequence[range] = ()) -> None:
        """Compute nothing."""

    def sample(self, logits: object, places: Sequence[int], allowed: object = None) -> None:
        batch = self._batch
        for chunk, position in (self._places[place] for place in places):
            slot, tokens = chunk.row, batch.tokens[chunk.row]
            rule, output = batch.biases.get(slot), position + 1 - int(batch.integers[0, slot])
            forced = () if rule is None else rule.forced[output : output + 1]
            token = forced[0] if forced else (31 * int(tokens[position]) + position + 1) % batch.vocab_size
            tokens[position + 1] = token
            logprobs = (TokenLogprob(token, 0.0),) if batch.want_logprobs[slot] else None
            self._draws.add(chunk, Sampled(chunk.sequence_id, (token,), logprobs))

    def score(self, logits: object, places: Sequence[int]) -> None:
        for chunk, position in (self._places[place] for place in places):
            token = int(self._batch.tokens[chunk.row, position + 1])
            self._scored.append(Scored(chunk.sequence_id, position + 1, (TokenLogprob(token, 0.0),)))

    def pool(self, hidden: Any, places: Sequence[int]) -> None:
        for chunk, _ in (self._places[place] for place in places):
            self._pooled.append(Pooled(chunk.sequence_id, (0.0,) * hidden.columns))

    def read(self, hidden: Any, places: Sequence[int]) -> None:
        """Read nothing: activations have no contents."""

    def finish(self) -> NullPass:
        return self

    def result(self) -> PassResult:
        return PassResult(self._draws.sampled, self._scored, self._pooled, time.perf_counter())
