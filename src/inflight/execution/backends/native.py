"""The backend of C++ kernels (`native/`), and probes of what the machine can do.

Knows how the contract in `protocol.py` maps to the compiled module: structs become arrays, nothing is checked or
computed here. The module checks what a pass is prepared with, and sizes and types in its operations (ValueError).
"""

from __future__ import annotations

import importlib
import itertools
from collections.abc import Iterable, Sequence
from operator import itemgetter
from typing import Any, Literal, NamedTuple

import numpy as np

from inflight.core.types.plan import Chunk
from inflight.execution.backends import int4
from inflight.execution.backends.host import HostBackend, HostPass
from inflight.execution.backends.matrices import (
    LINEAR_CODES,
    BlockMatrix,
    Int4Matrix,
    Int8Matrix,
    Matrix,
    ReorderedMatrix,
    Rows,
    alike,
    in_order,
)
from inflight.execution.backends.protocol import (
    Array,
    DType,
    Gating,
    Hold,
    KVShape,
    LayerState,
    RopeTable,
    Routing,
    SampledBatch,
    SamplingBatch,
    ScoredBatch,
)
from inflight.execution.backends.slots import PassInputs, RequestSlots


def _module() -> Any:
    try:
        return importlib.import_module("inflight.execution.backends._native")
    except ImportError as error:
        raise ImportError(
            "the native kernels are not built: install the package with `pip install .` (needs a C++20 compiler), "
            'or use the slow numpy backend with isa="reference"'
        ) from error


def available_isas() -> list[str]:
    """Instruction sets this build has and this CPU can run, best first."""
    return list(_module().available_isas())


class NativeBackend(HostBackend):
    """Backend over the compiled kernels, with threads of its own."""

    def __init__(self, dtype: DType, threads: int, isa: str = "auto", cores: Sequence[int] = ()) -> None:
        """cores: if any, thread t but the first, which is the caller's, stays on cores[t]."""
        self._module = _module()
        self._kernels = self._module.Backend(dtype, threads, isa, list(cores))
        self.isa: str = self._kernels.isa
        self.name = f"native {self.isa}"
        self.dtype: DType = dtype
        self.threads = threads

    # -- once, at load ----------------------------------------------------------------------------------------------
    def pack_vector(self, values: Array) -> Any:
        return self._module.Vector(np.array(values, np.float32))

    def pack_rope(self, table: RopeTable) -> Any:
        return self._module.RopeTable(table.cos, table.sin, table.q_scale)

    def pack_linear(
        self, parts: Sequence[Matrix], bias: Array | None = None, hold: Hold = "act", group: int = 32
    ) -> Any:
        return self._kernels.pack_linear(_pieces(parts, hold, group), bias)

    def pack_gate_up(
        self, gate: Matrix, up: Matrix, hold: Hold = "act", group: int = 32, bias: Array | None = None
    ) -> Any:
        (piece,) = _pieces(alike(gate, up, hold), hold, group)
        return self._kernels.pack_gate_up(piece, bias)

    def pack_experts(
        self, gate_up: Sequence[Any], down: Sequence[Any], routing: Routing, gating: Gating = "silu"
    ) -> Any:
        return self._kernels.pack_experts(
            list(gate_up),
            list(down),
            top_k=routing.top_k,
            sigmoid=routing.scores == "sigmoid",
            renormalize=routing.renormalize,
            correction=routing.correction,
            groups=routing.groups,
            top_groups=routing.top_groups,
            group_best=routing.group_best,
            scale=routing.scale,
            expert_scale=routing.expert_scale,
            gating=gating,
        )

    def pack_heads(self, weights: Sequence[Any]) -> Any:
        return self._kernels.pack_heads(list(weights))

    def pack_table(self, table: Matrix, hold: Hold = "act", group: int = 32) -> Any:
        (piece,) = _pieces([in_order(table)], hold, group)
        return self._kernels.pack_table(piece)

    def pack_rows(self, pieces: Iterable[Rows], rows: int, columns: int) -> Any:
        laid = (_blocks(piece) if isinstance(piece, BlockMatrix) else piece for piece in pieces)
        return self._kernels.pack_rows(laid, rows, columns)

    def bytes_per_block(self, shape: KVShape) -> int:
        return int(self._kernels.bytes_per_block(*_laid_out(shape)))

    def kv_cache(self, shape: KVShape, num_blocks: int) -> Any:
        cache = self._kernels.kv_cache(*_laid_out(shape), num_blocks)
        cache.shape = shape
        return cache

    def bytes_per_state(self, layers: Sequence[LayerState | None]) -> int:
        return int(self._kernels.bytes_per_state(_state_sizes(layers)))

    def state_cache(self, layers: Sequence[LayerState | None], rows: int, snapshots: int) -> NativeStates:
        return NativeStates(self._kernels, self._kernels.state_cache(_state_sizes(layers), rows, snapshots))

    def activation_of(self, array: Array) -> Any:
        return self._module.Activation(array)

    # -- per step ---------------------------------------------------------------------------------------------------
    def copy_blocks(self, kv_cache: Any, sources: Sequence[int], destinations: Sequence[int]) -> None:
        self._kernels.copy_blocks(kv_cache, sources, destinations)

    def forward_pass(
        self, inputs: PassInputs, kv_cache: Any, slots: RequestSlots, chunks: Sequence[Chunk]
    ) -> NativePass:
        where, states = inputs.metadata, slots.states
        of_states: tuple[Any, ...] = ()
        if inputs.states is not None:
            assert isinstance(states, NativeStates)
            of_states = (states.held, *inputs.states)
        prepared = self._module.PreparedPass(
            self._kernels,
            kv_cache,
            inputs.token_ids,
            where.positions,
            where.query_start,
            where.context_len,
            where.block_tables,
            *of_states,
        )
        return NativePass(prepared, self, inputs, slots, chunks)

    def sample(self, logits: Array, batch: SamplingBatch) -> SampledBatch:
        rows, vocabulary = logits.shape
        widest = min(max(batch.top_logprobs.tolist(), default=0), vocabulary)
        yielded = SampledBatch(
            np.empty(rows, np.int32),
            np.zeros(rows, np.float32),
            np.zeros((rows, widest), np.int32),
            np.zeros((rows, widest), np.float32),
        )
        self._kernels.sample(
            logits,
            batch.temperature,
            batch.top_k,
            batch.top_p,
            batch.min_p,
            batch.repetition_penalty,
            batch.presence_penalty,
            batch.frequency_penalty,
            batch.seed,
            batch.sample_index,
            batch.draw_index,
            batch.histories,
            batch.prompt_lengths,
            batch.bias_offsets,
            batch.bias_ids,
            batch.bias_values,
            batch.allowed,
            batch.want_logprobs,
            batch.top_logprobs,
            yielded.token_ids,
            yielded.logprobs,
            yielded.top_ids,
            yielded.top_logprobs,
        )
        return yielded

    def score(self, logits: Array, token_ids: Array, top_logprobs: Array) -> ScoredBatch:
        rows, vocabulary = logits.shape
        widest = min(int(top_logprobs.max(initial=0)), vocabulary)
        yielded = ScoredBatch(
            np.zeros(rows, np.float32), np.zeros((rows, widest), np.int32), np.zeros((rows, widest), np.float32)
        )
        self._kernels.score(logits, token_ids, top_logprobs, yielded.logprobs, yielded.top_ids, yielded.top_logprobs)
        return yielded

    # -- probes -----------------------------------------------------------------------------------------------------
    def read_bandwidth_bytes_per_s(self, gib: float = 0.5, passes: int = 3) -> float:
        """The best of a few passes of all threads over memory that no cache holds."""
        return float(self._kernels.read_bandwidth(int(gib * 2**30), passes))

    def peak_flops(self, kind: Literal["bf16", "f32", "int8"], seconds: float = 0.1) -> float:
        """Operations per second (two per multiply-add) of all threads on registers."""
        return float(self._kernels.peak(kind, seconds))


class _Layout(NamedTuple):
    """How the module packs a matrix. Of int4: inputs of a group, whether there are offsets, what codes stand for, and
    the order of the inputs (int32; none: as they are)."""

    hold: Hold
    group: int = 0
    offsets: bool = False
    meanings: bytes = b""
    order: bytes = b""


def _pieces(parts: Sequence[Matrix], hold: Hold, group: int) -> list[tuple[Any, ...]]:
    """Neighbours of one layout together, as the module takes them: matrices, then the fields of the layout."""
    laid = [_laid(part, hold, group) for part in parts]
    return [
        (
            [matrix for _, matrix in run],
            *layout[:3],
            np.frombuffer(layout.meanings, np.int8),
            np.frombuffer(layout.order, np.int32) if layout.order else None,
        )
        for layout, run in itertools.groupby(laid, key=itemgetter(0))
    ]


def _laid(matrix: Matrix, hold: Hold, group: int) -> tuple[_Layout, Any]:
    if isinstance(matrix, BlockMatrix):
        if matrix.is_int8:
            return _Layout("int8"), _blocks(matrix)
        return _Layout("int4", 32, matrix.has_offsets, matrix.meanings.tobytes()), _blocks(matrix)
    if isinstance(matrix, Int8Matrix):
        return _Layout("int8"), (np.ascontiguousarray(matrix.values), np.ascontiguousarray(matrix.scales))
    if isinstance(matrix, ReorderedMatrix):
        layout, laid = _laid(matrix.matrix, hold, group)
        return layout._replace(order=matrix.order.astype(np.int32).tobytes()), laid
    if isinstance(matrix, Int4Matrix):
        held = int4.hold(matrix)
        layout = _Layout("int4", held.group, held.offsets is not None, held.meanings.tobytes())
        offsets = None if held.offsets is None else np.ascontiguousarray(held.offsets)
        return layout, (np.ascontiguousarray(held.codes), np.ascontiguousarray(held.scales), offsets, held.factors)
    return (_Layout("int4", group, False, LINEAR_CODES.tobytes()) if hold == "int4" else _Layout(hold)), matrix


def _blocks(matrix: BlockMatrix) -> tuple[str, Array, int]:
    return matrix.kind, np.ascontiguousarray(matrix.rows), matrix.columns


def read_bandwidth_bytes_per_s(threads: int, isa: str = "auto") -> float:
    """Measured read bandwidth of `threads` threads."""
    return NativeBackend("float32", threads, isa).read_bandwidth_bytes_per_s()


def peak_flops(kind: Literal["bf16", "f32", "int8"], threads: int, isa: str = "auto") -> float:
    """Measured peak of multiply-adds, two operations each, of `threads` threads."""
    return NativeBackend("float32", threads, isa).peak_flops(kind)


def _laid_out(shape: KVShape) -> tuple[int, bool, list[tuple[int, int, int, int]]]:
    """As the module takes it; a layer without a place has no heads."""
    layers = [one and (one.group, one.kv_heads, one.key_dim, one.value_dim) for one in shape.layers]
    return shape.block_size, shape.quantized, [one or (0, 0, 0, 0) for one in layers]


def _state_sizes(layers: Sequence[LayerState | None]) -> list[tuple[int, ...]]:
    found = [one or LayerState(0, 0) for one in layers]
    return [(one.inputs, one.channels, one.heads, one.key_dim, one.value_dim) for one in found]


class NativeStates:
    """held: the module's."""

    def __init__(self, kernels: Any, held: Any) -> None:
        self._kernels, self.held = kernels, held

    @property
    def nbytes(self) -> int:
        return int(self.held.nbytes)

    def begin(self, row: int, snapshot: int) -> None:
        self._kernels.begin_state(self.held, row, snapshot)


class NativePass(HostPass):
    """The compiled pass's operations, called without a detour: with small models such a call is most of a step."""

    def __init__(
        self,
        prepared: Any,
        backend: NativeBackend,
        inputs: PassInputs,
        slots: RequestSlots,
        chunks: Sequence[Chunk],
    ):
        super().__init__(backend, inputs, slots, chunks)
        self.embed, self.rms_norm, self.gather = prepared.embed, prepared.rms_norm, prepared.gather
        self.layer_norm, self.to_act, self.add = prepared.layer_norm, prepared.to_act, prepared.add
        self.scale, self.soft_cap, self.activate = prepared.scale, prepared.soft_cap, prepared.activate
        self.clear = prepared.clear
        self.linear, self.linear_residual, self.gate_up = prepared.linear, prepared.linear_residual, prepared.gate_up
        self.experts, self.add_gated, self.by_head = prepared.experts, prepared.add_gated, prepared.by_head
        self.rope_and_write_latent = prepared.rope_and_write_latent
        self.rope_and_write_kv, self.attention = prepared.rope_and_write_kv, prepared.attention
        self.gate, self.convolve, self.convolve_gated = prepared.gate, prepared.convolve, prepared.convolve_gated
        self.delta_rule = prepared.delta_rule
