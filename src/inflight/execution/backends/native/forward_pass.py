"""A pass of the native backend: the compiled pass's operations, by kind. Nothing is computed here."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from inflight.core.types.plan import Chunk
from inflight.execution.backends.host import HostBackend, HostPass
from inflight.execution.batch.input_batch import InputBatch
from inflight.execution.batch.pass_layout import PassInputs


class NativePass(HostPass):
    """Operations are called without a detour: with small models such a call is most of a step."""

    def __init__(
        self,
        prepared: Any,
        backend: HostBackend[Any],
        inputs: PassInputs,
        batch: InputBatch,
        chunks: Sequence[Chunk],
    ):
        super().__init__(backend, inputs, batch, chunks)
        # On rows: `native/pass/rows.h`.
        self.embed, self.gather = prepared.embed, prepared.gather
        self.clear, self.to_act = prepared.clear, prepared.to_act
        self._add_rows, self._mean = prepared.add_rows_of, prepared.mean
        self.rms_norm, self.layer_norm, self.add = prepared.rms_norm, prepared.layer_norm, prepared.add
        self.layer_norm_sum = prepared.layer_norm_sum
        self.scale, self.soft_cap, self.activate = prepared.scale, prepared.soft_cap, prepared.activate
        self.add_gated, self.gate = prepared.add_gated, prepared.gate
        # With packed weights: `products.h`.
        self.linear, self.linear_residual, self.gate_up = prepared.linear, prepared.linear_residual, prepared.gate_up
        self.linear_act = prepared.linear_act
        self.experts, self.by_head = prepared.experts, prepared.by_head
        # On the KV cache: `attention.h`.
        self.rope_and_write_kv, self.attention = prepared.rope_and_write_kv, prepared.attention
        self.rope_and_write_latent = prepared.rope_and_write_latent
        # On states: `states.h`.
        self.convolve, self.convolve_gated = prepared.convolve, prepared.convolve_gated
        self.delta_rule = prepared.delta_rule

    def add_positions(self, table: Any, first: int, out: Any) -> None:
        self._add_rows(table, self._inputs.metadata.positions + np.int32(first), out)

    def add_token_types(self, table: Any, out: Any) -> None:
        self._add_rows(table, self._inputs.token_types(), out)

    def mean(self, x: Any, ranges: Sequence[range], out: Any) -> None:
        starts, ends = np.array([(one.start, one.stop) for one in ranges], np.int32).T.copy()
        self._mean(x, starts, ends, out)
