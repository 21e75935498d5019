"""The reference backend: what it packs and keeps, and whom it asks to compute.

Knows the parts of this folder, and the slots and results that backends of the host share.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from inflight.core.types.plan import Chunk
from inflight.execution.backends import int8
from inflight.execution.backends.host import HostBackend
from inflight.execution.backends.matrices import BlockMatrix, Matrix, Rows, alike, by_output, dequantized, in_order
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
from inflight.execution.backends.reference import sampling
from inflight.execution.backends.reference.act import Act
from inflight.execution.backends.reference.activation import ReferenceActivation
from inflight.execution.backends.reference.forward_pass import ReferencePass
from inflight.execution.backends.reference.kv_cache import ReferenceKVCache, bytes_per_block
from inflight.execution.backends.reference.packing import converted, held
from inflight.execution.backends.reference.states import ReferenceStates
from inflight.execution.backends.reference.weights import (
    ReferenceExperts,
    ReferenceGateUp,
    ReferenceHeads,
    ReferenceLinear,
    ReferenceTable,
)
from inflight.execution.batch.input_batch import InputBatch
from inflight.execution.batch.pass_layout import PassInputs


class ReferenceBackend(HostBackend[ReferencePass]):
    """Backend over numpy. `threads` is accepted and ignored."""

    def __init__(self, dtype: DType, threads: int = 1) -> None:
        if dtype not in ("bfloat16", "float32"):
            raise ValueError(f"dtype must be bfloat16 or float32, not {dtype!r}")
        self.name = "reference"
        self.dtype: DType = dtype
        self.threads = threads
        self._act = Act(dtype)

    # -- once, at load ----------------------------------------------------------------------------------------------
    def pack_vector(self, values: Array) -> Array:
        return np.array(values, np.float32)

    def pack_rope(self, table: RopeTable) -> RopeTable:
        return table.whole()

    def pack_linear(
        self, parts: Sequence[Matrix], bias: Array | None = None, hold: Hold = "act", group: int = 32
    ) -> ReferenceLinear:
        packed = tuple(held(part, self._act, hold, group) for part in parts)
        return ReferenceLinear(packed, None if bias is None else np.array(bias, np.float32))

    def pack_gate_up(
        self, gate: Matrix, up: Matrix, hold: Hold = "act", group: int = 32, bias: Array | None = None
    ) -> ReferenceGateUp:
        gate, up = alike(gate, up, hold)
        of_gate, of_up = (None, None) if bias is None else bias
        return ReferenceGateUp(
            self.pack_linear([gate], of_gate, hold, group), self.pack_linear([up], of_up, hold, group)
        )

    def pack_experts(
        self,
        gate_up: Sequence[ReferenceGateUp],
        down: Sequence[ReferenceLinear],
        routing: Routing,
        gating: Gating = "silu",
    ) -> ReferenceExperts:
        return ReferenceExperts(tuple(gate_up), tuple(down), routing, gating)

    def pack_heads(self, weights: Sequence[ReferenceLinear]) -> ReferenceHeads:
        return ReferenceHeads(tuple(weights))

    def pack_table(self, table: Matrix, hold: Hold = "act", group: int = 32) -> ReferenceTable:
        linear = self.pack_linear([in_order(table)], hold=hold, group=group)
        return ReferenceTable(linear.parts[0], linear)

    def pack_rows(self, pieces: Iterable[Rows], rows: int, columns: int, share: int = 0) -> ReferenceTable:
        if share and columns % share:
            raise ValueError(f"rows of {columns} columns have no equal shares of {share}")
        plain = (piece.numbers() if isinstance(piece, BlockMatrix) else piece for piece in pieces)
        packed = np.concatenate([dequantized(piece) if share else converted(piece, self._act) for piece in plain])
        if packed.shape != (rows, columns):
            raise ValueError(f"the pieces of a table have shape {list(packed.shape)} together, not {[rows, columns]}")
        if share:
            return ReferenceTable(by_output(*int8.quantize(packed.reshape(-1, share))), None, columns // share)
        return ReferenceTable(packed, None)

    def pack_adapter(self, deltas: Iterable[Delta]) -> PackedAdapter[ReferenceLinear]:
        return PackedAdapter(deltas, lambda matrix: ReferenceLinear((converted(matrix, self._act),), None))

    def finish_packing(self) -> None:
        pass

    def bytes_per_block(self, shape: KVShape) -> int:
        return bytes_per_block(shape, self._act)

    def kv_cache(self, shape: KVShape, num_blocks: int, host_blocks: int = 0) -> ReferenceKVCache:
        return ReferenceKVCache(shape, num_blocks + host_blocks, self._act)

    def block_memory(self, kv_cache: KVCache) -> memoryview:
        assert isinstance(kv_cache, ReferenceKVCache)
        return kv_cache.memory.data.cast("B")

    def bytes_per_state(self, layers: Sequence[LayerState | None]) -> int:
        return ReferenceStates(layers, 1, 0, self._act).nbytes

    def state_cache(self, layers: Sequence[LayerState | None], rows: int, snapshots: int) -> ReferenceStates:
        return ReferenceStates(layers, rows, snapshots, self._act)

    def activation_of(self, array: Array) -> ReferenceActivation:
        return ReferenceActivation(array, len(array))

    # -- per step ---------------------------------------------------------------------------------------------------
    def copy_blocks(self, kv_cache: KVCache, sources: Sequence[int], destinations: Sequence[int]) -> None:
        assert isinstance(kv_cache, ReferenceKVCache)
        kv_cache.copy(sources, destinations)

    def forward_pass(
        self, inputs: PassInputs, kv_cache: KVCache, batch: InputBatch, chunks: Sequence[Chunk]
    ) -> ReferencePass:
        assert isinstance(kv_cache, ReferenceKVCache)
        return ReferencePass(self, self._act, inputs, kv_cache, batch, chunks)

    def sample(self, logits: Array, batch: SamplingBatch) -> SampledBatch:
        return sampling.sample(logits, batch)

    def score(self, logits: Array, token_ids: Array, top_logprobs: Array) -> ScoredBatch:
        return sampling.score(logits, token_ids, top_logprobs)
