"""The reference backend: it packs weights, owns memory, and runs programs by the operations' definitions."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from itertools import accumulate
from typing import Any

import numpy as np

from inflight.core.types.plan import Chunk
from inflight.execution.backends import grouped, int4, int8
from inflight.execution.backends.host import HostBackend, HostPass
from inflight.execution.backends.matrices import (
    BlockMatrix,
    Fp8Matrix,
    Matrix,
    Rows,
    alike,
    by_output,
    dequantized,
    in_int8,
    in_order,
)
from inflight.execution.backends.packed_adapter import PackedAdapter
from inflight.execution.backends.protocol import (
    Array,
    Delta,
    DType,
    Gating,
    Hold,
    KVCache,
    KVShape,
    LayerState,
    RopeTable,
    Routing,
    SampledBatch,
    SamplingBatch,
    ScoredBatch,
)
from inflight.execution.backends.reference.kv_cache import ReferenceKVCache, bytes_per_block
from inflight.execution.batch.input_batch import InputBatch
from inflight.execution.batch.pass_layout import PassInputs
from inflight.execution.ops import sampling
from inflight.execution.ops.numpy_pass import Act, NumpyActivation, NumpyPass, RecurrentStates
from inflight.execution.ops.numpy_weights import NumpyExperts, NumpyGateUp, NumpyHeads, NumpyLinear, NumpyTable, Packed
from inflight.execution.program import Program


class ReferencePass(HostPass):
    def __init__(
        self,
        backend: ReferenceBackend,
        inputs: PassInputs,
        kv_cache: ReferenceKVCache,
        batch: InputBatch,
        chunks: Sequence[Chunk],
    ):
        super().__init__(backend, inputs, batch, chunks)
        states, moves = batch.states, inputs.states
        assert states is None or isinstance(states, ReferenceStates)
        if states is not None and moves is not None:
            moves = moves._replace(slots=moves.slots + states.first_snapshot)
        self._on = NumpyPass(
            backend.act,
            inputs.token_ids,
            inputs.metadata,
            inputs.token_types,
            kv_cache,
            states,
            moves,
            inputs.adapted,
        )

    def run(self, program: Program, places: Sequence[int] = (), texts: Sequence[range] = ()) -> None:
        self._on.run(program, places, texts)


class ReferenceBackend(HostBackend[ReferencePass]):
    """Backend over numpy. `threads` is accepted and ignored."""

    def __init__(self, dtype: DType, threads: int = 1) -> None:
        if dtype not in ("bfloat16", "float32"):
            raise ValueError(f"dtype must be bfloat16 or float32, not {dtype!r}")
        self.name = "reference"
        self.dtype: DType = dtype
        self.threads = threads
        self.act = Act(dtype)

    # -- once, at load ----------------------------------------------------------------------------------------------
    def pack_vector(self, values: Array) -> Array:
        return np.array(values, np.float32)

    def pack_rope(self, table: RopeTable) -> RopeTable:
        return table.whole()

    def pack_linear(
        self, parts: Sequence[Matrix], bias: Array | None = None, hold: Hold = "act", group: int = 32
    ) -> NumpyLinear:
        found = tuple(packed(part, self.act, hold, group) for part in parts)
        return NumpyLinear(found, None if bias is None else np.array(bias, np.float32))

    def pack_gate_up(
        self, gate: Matrix, up: Matrix, hold: Hold = "act", group: int = 32, bias: Array | None = None
    ) -> NumpyGateUp:
        both = alike(gate, up, hold)
        return NumpyGateUp(self.pack_linear(both, None if bias is None else bias.reshape(-1), hold, group))

    def pack_experts(
        self,
        gate_up: Sequence[NumpyGateUp],
        down: Sequence[NumpyLinear],
        routing: Routing,
        gating: Gating = "silu",
    ) -> NumpyExperts:
        return NumpyExperts(tuple(gate_up), tuple(down), routing, gating)

    def pack_heads(self, weights: Sequence[NumpyLinear]) -> NumpyHeads:
        return NumpyHeads(tuple(weights))

    def pack_table(self, table: Matrix, hold: Hold = "act", group: int = 32) -> NumpyTable:
        linear = self.pack_linear([in_order(table)], hold=hold, group=group)
        return NumpyTable(linear.parts[0], linear)

    def pack_rows(self, pieces: Iterable[Rows], rows: int, columns: int, share: int = 0) -> NumpyTable:
        if share and columns % share:
            raise ValueError(f"rows of {columns} columns have no equal shares of {share}")
        plain = (piece.numbers() if isinstance(piece, BlockMatrix) else piece for piece in pieces)
        whole = np.concatenate([dequantized(piece) if share else converted(piece, self.act) for piece in plain])
        if whole.shape != (rows, columns):
            raise ValueError(f"the pieces of a table have shape {list(whole.shape)} together, not {[rows, columns]}")
        if share:
            return NumpyTable(by_output(*int8.quantize(whole.reshape(-1, share))), None, columns // share)
        return NumpyTable(whole)

    def pack_adapter(self, deltas: Iterable[Delta]) -> PackedAdapter[NumpyLinear]:
        return PackedAdapter(deltas, lambda matrix: NumpyLinear((converted(matrix, self.act),)))

    def finish_packing(self) -> None:
        pass

    def bytes_per_block(self, shape: KVShape) -> int:
        return bytes_per_block(shape, self.act)

    def kv_cache(self, shape: KVShape, num_blocks: int, host_blocks: int = 0) -> ReferenceKVCache:
        return ReferenceKVCache(shape, num_blocks + host_blocks, self.act)

    def block_memory(self, kv_cache: KVCache) -> memoryview:
        assert isinstance(kv_cache, ReferenceKVCache)
        return kv_cache.memory.data.cast("B")

    def bytes_per_state(self, layers: Sequence[LayerState | None]) -> int:
        return ReferenceStates(layers, 1, 0, self.act).nbytes

    def state_cache(self, layers: Sequence[LayerState | None], rows: int, snapshots: int) -> ReferenceStates:
        return ReferenceStates(layers, rows, snapshots, self.act)

    def activation_of(self, array: Array) -> NumpyActivation:
        return NumpyActivation(array, len(array))

    # -- per step ---------------------------------------------------------------------------------------------------
    def copy_blocks(self, kv_cache: KVCache, sources: Sequence[int], destinations: Sequence[int]) -> None:
        assert isinstance(kv_cache, ReferenceKVCache)
        kv_cache.copy(sources, destinations)

    def forward_pass(
        self, inputs: PassInputs, kv_cache: KVCache, batch: InputBatch, chunks: Sequence[Chunk]
    ) -> ReferencePass:
        assert isinstance(kv_cache, ReferenceKVCache)
        return ReferencePass(self, inputs, kv_cache, batch, chunks)

    def sample(self, logits: Array, batch: SamplingBatch) -> SampledBatch:
        return sampling.sample(logits, batch)

    def score(self, logits: Array, token_ids: Array, top_logprobs: Array) -> ScoredBatch:
        return sampling.score(logits, token_ids, top_logprobs)


def packed(matrix: Matrix, act: Act, hold: Hold, group: int) -> Packed:
    """Keep quantized matrices as they are, and convert plain numbers as `hold` says. group: inputs to a scale, in
    int4."""
    if isinstance(matrix, BlockMatrix):
        return packed(matrix.unpacked(), act, hold, group)
    if isinstance(matrix, Fp8Matrix):
        return grouped.hold(in_int8(matrix))
    if not isinstance(matrix, np.ndarray):
        return grouped.hold(matrix)
    if hold == "int8":
        return grouped.hold_mixed(dequantized(matrix))
    if hold == "int4":
        return grouped.hold(int4.quantize(dequantized(matrix), group))
    return converted(matrix, act)


def converted(source: Array, act: Act) -> Array:
    """Copy a checkpoint's plain numbers to `act`."""
    is_act_already = source.dtype == np.uint16 and act.dtype == "bfloat16"
    return source.copy() if is_act_already else act.store(dequantized(source))


class ReferenceStates:
    """States of each layer: inputs act[states, inputs, channels], and matrices [states, heads, key_dim, value_dim];
    first those of rows, then of snapshots. They are views of uint8[states, bytes of a state], matrices first."""

    def __init__(self, layers: Sequence[LayerState | None], rows: int, snapshots: int, act: Act):
        of = [one or LayerState(0, 0) for one in layers]
        parts: list[tuple[tuple[int, ...], np.dtype[Any]]]
        parts = [((one.heads, one.key_dim, one.value_dim), np.dtype(np.float32)) for one in of]
        parts += [((one.inputs, one.channels), act.item) for one in of]
        ends = list(accumulate((math.prod(shape) * item.itemsize for shape, item in parts), initial=0))
        self.first_snapshot = rows
        self._memory = np.zeros((rows + snapshots, -(-ends[-1] // 4) * 4), np.uint8)
        views = [
            self._memory[:, start:end].view(item).reshape(rows + snapshots, *shape)
            for (shape, item), start, end in zip(parts, ends, ends[1:], strict=False)
        ]
        self.matrices, self.inputs = views[: len(of)], views[len(of) :]

    @property
    def nbytes(self) -> int:
        return self._memory.nbytes

    @property
    def snapshot_memory(self) -> memoryview:
        return self._memory[self.first_snapshot :].data.cast("B")

    def layer(self, layer: int) -> RecurrentStates:
        return RecurrentStates(self.inputs[layer], self.matrices[layer])

    def begin(self, row: int, snapshot: int) -> None:
        self._memory[row] = self._memory[self.first_snapshot + snapshot]
