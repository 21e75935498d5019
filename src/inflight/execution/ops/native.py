"""The op set of C++ kernels (`native/`), and probes of what the machine can do.

Knows how the contract in `protocol.py` maps to the compiled module: structs become arrays, nothing is checked or
computed here. Shapes and dtypes are checked by the module, which raises ValueError.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from dataclasses import astuple
from typing import Any, Literal

import numpy as np

from inflight.execution.ops.protocol import (
    DType,
    KVShape,
    RopeTable,
    SampledBatch,
    SamplingBatch,
    ScoredBatch,
    StepLayout,
)

Array = np.ndarray[Any, Any]


def _module() -> Any:
    try:
        return importlib.import_module("inflight.execution.ops._native")
    except ImportError as error:
        raise ImportError(
            "the native kernels are not built: install the package with `pip install .` (needs a C++20 compiler), "
            'or use the slow numpy op set with isa="reference"'
        ) from error


def available_isas() -> list[str]:
    """Instruction sets this build has and this CPU can run, best first."""
    return list(_module().available_isas())


class NativeOps:
    """OpSet over the compiled kernels, with threads of its own."""

    def __init__(self, dtype: DType, threads: int, isa: str = "auto", cores: Sequence[int] = ()) -> None:
        """cores: if any, thread t but the first, which is the caller's, stays on cores[t]."""
        self._ops = _module().Ops(dtype, threads, isa, list(cores))
        self.isa: str = self._ops.isa
        self.name = f"native {self.isa}"
        self.dtype: DType = dtype
        self.threads = threads

    # -- once, at load ----------------------------------------------------------------------------------------------
    def pack_linear(self, parts: Sequence[Array], bias: Array | None = None, quantized: bool = False) -> Any:
        return self._ops.pack_linear(list(parts), bias, quantized)

    def pack_gated(self, gate: Array, up: Array, quantized: bool = False) -> Any:
        return self._ops.pack_gated(gate, up, quantized)

    def pack_table(self, table: Array, tied: bool, quantized: bool = False) -> Any:
        return self._ops.pack_table(table, tied, quantized)

    def bytes_per_block(self, shape: KVShape) -> int:
        return int(self._ops.bytes_per_block(*astuple(shape)))

    def kv_arena(self, shape: KVShape, num_blocks: int) -> Any:
        arena = self._ops.kv_arena(*astuple(shape), num_blocks)
        arena.shape = shape
        return arena

    # -- per step ---------------------------------------------------------------------------------------------------
    def embed(self, table: Any, token_ids: Array, out: Array) -> None:
        self._ops.embed(table, token_ids, out)

    def rms_norm(self, x: Array, weight: Array, eps: float, out: Array) -> None:
        self._ops.rms_norm(x, weight, eps, out)

    def linear(self, x: Array, weight: Any, out: Array) -> None:
        self._ops.linear(x, weight, out)

    def linear_add(self, x: Array, weight: Any, out: Array) -> None:
        self._ops.linear_add(x, weight, out)

    def gated(self, x: Array, weight: Any, out: Array) -> None:
        self._ops.gated(x, weight, out)

    def rope_and_write_kv(
        self,
        qkv: Array,
        arena: Any,
        layer: int,
        layout: StepLayout,
        rope: RopeTable,
        q_norm: Array | None,
        k_norm: Array | None,
        eps: float,
        q_out: Array,
    ) -> None:
        self._ops.rope_and_write_kv(
            qkv,
            arena,
            layer,
            layout.positions,
            layout.offsets,
            layout.starts,
            layout.tables,
            rope.cos,
            rope.sin,
            q_norm,
            k_norm,
            eps,
            q_out,
        )

    def attention(
        self, q: Array, arena: Any, layer: int, layout: StepLayout, scale: float, window: int, out: Array
    ) -> None:
        self._ops.attention(
            q, arena, layer, layout.positions, layout.offsets, layout.starts, layout.tables, scale, window, out
        )

    def sample(self, logits: Array, batch: SamplingBatch) -> SampledBatch:
        rows, vocabulary = logits.shape
        wanted = np.where(batch.want_logprobs, batch.top_logprobs, 0)
        widest = min(int(wanted.max(initial=0)), vocabulary)
        yielded = SampledBatch(
            np.empty(rows, np.int32),
            np.zeros(rows, np.float32),
            np.zeros((rows, widest), np.int32),
            np.zeros((rows, widest), np.float32),
        )
        self._ops.sample(
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
        self._ops.score(logits, token_ids, top_logprobs, yielded.logprobs, yielded.top_ids, yielded.top_logprobs)
        return yielded

    # -- probes -----------------------------------------------------------------------------------------------------
    def read_bandwidth_bytes_per_s(self, gib: float = 0.5, passes: int = 3) -> float:
        """The best of a few passes of all threads over memory that no cache holds."""
        return float(self._ops.read_bandwidth(int(gib * 2**30), passes))

    def peak_flops(self, kind: Literal["bf16", "f32", "int8"], seconds: float = 0.1) -> float:
        """Operations per second (two per multiply-add) of all threads on registers."""
        return float(self._ops.peak(kind, seconds))


def read_bandwidth_bytes_per_s(threads: int, isa: str = "auto") -> float:
    """Measured read bandwidth of `threads` threads."""
    return NativeOps("float32", threads, isa).read_bandwidth_bytes_per_s()


def peak_flops(kind: Literal["bf16", "f32", "int8"], threads: int, isa: str = "auto") -> float:
    """Measured peak of multiply-adds, two operations each, of `threads` threads."""
    return NativeOps("float32", threads, isa).peak_flops(kind)
