"""The native backend: the protocol's calls become the compiled module's, which checks and computes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Literal

import numpy as np

from inflight.compiled import module
from inflight.core.types.plan import Chunk
from inflight.cpus import ANYWHERE, ThreadCpus
from inflight.execution.backends.host import HostBackend
from inflight.execution.backends.matrices import Matrix, Rows, alike, in_order
from inflight.execution.backends.native.forward_pass import NativePass, NativeProgram
from inflight.execution.backends.native.packing import pieces, taken_rows
from inflight.execution.backends.native.recording import RecordedCall, Recording
from inflight.execution.backends.protocol import (
    Array,
    Delta,
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
from inflight.execution.batch.input_batch import InputBatch
from inflight.execution.batch.pass_layout import PassInputs
from inflight.execution.program import Program


class NativeStates:
    """States of recurrent layers in the module's memory, `held`."""

    def __init__(self, kernels: Any, held: Any) -> None:
        self._kernels, self.held = kernels, held

    @property
    def nbytes(self) -> int:
        return int(self.held.nbytes)

    @property
    def snapshot_memory(self) -> memoryview:
        held = self.held
        memory: memoryview = held.memory.cast("B")
        return memory[int(held.nbytes) // (held.rows + held.snapshots) * held.rows :]

    def begin(self, row: int, snapshot: int) -> None:
        self._kernels.begin_state(self.held, row, snapshot)


_ROPE_POSITIONS = 256  # that tables of cosines are continued by


class NativeBackend(HostBackend[NativePass]):
    """Backend over the compiled kernels, with threads of its own."""

    def __init__(self, dtype: DType, threads: int, isa: str = "auto", cpus: ThreadCpus = ANYWHERE) -> None:
        self._module = module()
        self._kernels = self._module.Backend(dtype, threads, isa, cpus.cpus, cpus.hold_caller, cpus.first_touch)
        self.isa: str = self._kernels.isa
        self.name = f"native {self.isa}"
        self.dtype: DType = dtype
        self.threads = threads
        self._ropes: list[RopeTable] = []
        self._reached = 0  # positions that all of them have
        self._recording: Recording | None = None

    # -- once, at load ----------------------------------------------------------------------------------------------
    def pack_vector(self, values: Array) -> Any:
        return self._module.Vector(np.array(values, np.float32))

    def pack_rope(self, table: RopeTable) -> Any:
        table.reach(self._reached)
        self._ropes.append(table)
        return self._module.RopeTable(table.cos, table.sin, table.q_scale)

    def pack_linear(
        self, parts: Sequence[Matrix], bias: Array | None = None, hold: Hold = "act", group: int = 32
    ) -> Any:
        return self._kernels.pack_linear(pieces(parts, hold, group), bias)

    def pack_gate_up(
        self, gate: Matrix, up: Matrix, hold: Hold = "act", group: int = 32, bias: Array | None = None
    ) -> Any:
        (piece,) = pieces(alike(gate, up, hold), hold, group)
        return self._kernels.pack_gate_up(piece, bias)

    def pack_experts(
        self, gate_up: Sequence[Any], down: Sequence[Any], routing: Routing, gating: Gating = "silu"
    ) -> Any:
        return self._kernels.pack_experts(
            list(gate_up),
            list(down),
            top_k=routing.top_k,
            scores=routing.scores,
            renormalize=routing.renormalize,
            sum_offset=routing.sum_offset,
            jitter=routing.jitter,
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
        (piece,) = pieces([in_order(table)], hold, group)
        return self._kernels.pack_table(piece)

    def pack_rows(self, pieces: Iterable[Rows], rows: int, columns: int, share: int = 0) -> Any:
        return self._kernels.pack_rows((taken_rows(piece, share) for piece in pieces), rows, columns, share)

    def pack_adapter(self, deltas: Iterable[Delta]) -> Any:
        adapter = self._module.Adapter(self._kernels)
        for delta in deltas:
            down = pieces([part.down for part in delta.parts], "act", 0)
            parts = [(part.first, pieces([part.up], "act", 0)) for part in delta.parts]
            adapter.add(self._kernels, delta.weight, down, parts)
        return adapter

    def finish_packing(self) -> None:
        self._kernels.finish_packing()

    def bytes_per_block(self, shape: KVShape) -> int:
        return int(self._kernels.bytes_per_block(*_laid_out(shape)))

    def kv_cache(self, shape: KVShape, num_blocks: int, host_blocks: int = 0) -> Any:
        cache = self._kernels.kv_cache(*_laid_out(shape), num_blocks + host_blocks)
        cache.shape = shape
        return cache

    def block_memory(self, kv_cache: Any) -> memoryview:
        view: memoryview = kv_cache.memory
        return view.cast("B")

    def bytes_per_state(self, layers: Sequence[LayerState | None]) -> int:
        return int(self._kernels.bytes_per_state(_state_sizes(layers)))

    def state_cache(self, layers: Sequence[LayerState | None], rows: int, snapshots: int) -> NativeStates:
        return NativeStates(self._kernels, self._kernels.state_cache(_state_sizes(layers), rows, snapshots))

    def activation_of(self, array: Array) -> Any:
        return self._module.Activation(array)

    def compile(self, program: Program) -> NativeProgram:
        """Record the program's operations with the compiled module."""
        compiled = self._module.Program()
        for operation, arguments in program.calls:
            getattr(compiled, operation.name)(*arguments)
        return NativeProgram(compiled, tuple(program.calls))

    # -- per step ---------------------------------------------------------------------------------------------------
    def copy_blocks(self, kv_cache: Any, sources: Sequence[int], destinations: Sequence[int]) -> None:
        self._kernels.copy_blocks(kv_cache, sources, destinations)

    def forward_pass(self, inputs: PassInputs, kv_cache: Any, batch: InputBatch, chunks: Sequence[Chunk]) -> NativePass:
        where, states = inputs.metadata, batch.states
        past = int(where.positions.max(initial=-1)) + 1
        if past > self._reached:
            self._reached = -(-past // _ROPE_POSITIONS) * _ROPE_POSITIONS
            for table in self._ropes:
                table.reach(self._reached)
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
            token_types=None if inputs.second_text_at is None else inputs.token_types(),
        )
        if inputs.adapted:
            firsts = [one.rows.start for one in inputs.adapted]
            counts = [one.rows.stop - one.rows.start for one in inputs.adapted]
            prepared.adapt(firsts, counts, [one.adapter for one in inputs.adapted])
        recorder = None if self._recording is None else self._recording.of_pass(where, kv_cache.shape)
        return NativePass(prepared, self, inputs, batch, chunks, recorder)

    def sample(self, logits: Array, batch: SamplingBatch) -> SampledBatch:
        rows, vocabulary = logits.shape
        widest = min(max(batch.top_logprobs.tolist(), default=0), vocabulary)
        yielded = SampledBatch(
            np.empty(rows, np.int32),
            np.zeros(rows, np.float32),
            np.zeros((rows, widest), np.int32),
            np.zeros((rows, widest), np.float32),
        )
        if self._recording is not None:
            self._recording.begin(RecordedCall("sample", logits.nbytes, 0, "float32"))
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

    @contextmanager
    def recorded(self) -> Iterator[Recording]:
        """Record what passes call meanwhile, and when each thread is at it."""
        self._recording = Recording(self._kernels, self.dtype)
        try:
            yield self._recording
        finally:
            self._recording = None

    # -- probes -----------------------------------------------------------------------------------------------------
    def read_bandwidth_bytes_per_s(self, gib: float = 0.5, passes: int = 3) -> float:
        """Measure reading by all threads, the best of a few passes over memory that no cache holds, in bytes per
        second."""
        return float(self._kernels.read_bandwidth(int(gib * 2**30), passes))

    def peak_flops(self, kind: Literal["bf16", "f32", "int8"], seconds: float = 0.1) -> float:
        """Operations per second (two per multiply-add) of all threads on registers."""
        return float(self._kernels.peak(kind, seconds))


def _laid_out(shape: KVShape) -> tuple[int, bool, list[tuple[int, int, int, int]]]:
    """Return a cache's shape as the compiled module takes it; a layer without a place has no heads."""
    layers = [one and (one.group, one.kv_heads, one.key_dim, one.value_dim) for one in shape.layers]
    return shape.block_size, shape.quantized, [one or (0, 0, 0, 0) for one in layers]


def _state_sizes(layers: Sequence[LayerState | None]) -> list[tuple[int, ...]]:
    found = [one or LayerState(0, 0) for one in layers]
    return [(one.inputs, one.channels, one.heads, one.key_dim, one.value_dim) for one in found]
