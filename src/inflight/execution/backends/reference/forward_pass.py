"""A pass of the reference backend: its operations by kind, each over what it needs of the pass.

Passes each kind the tensors that it needs; nothing is computed here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from inflight.core.types.plan import Chunk
from inflight.execution.backends.host import HostBackend, HostPass
from inflight.execution.backends.reference.act import Act
from inflight.execution.backends.reference.adapters import AddedRows
from inflight.execution.backends.reference.kv_cache import ReferenceKVCache
from inflight.execution.backends.reference.pass_attention import AttentionOperations
from inflight.execution.backends.reference.pass_products import ProductOperations
from inflight.execution.backends.reference.pass_rows import RowOperations
from inflight.execution.backends.reference.pass_states import RecurrentOperations
from inflight.execution.backends.reference.states import ReferenceStates
from inflight.execution.batch.input_batch import InputBatch
from inflight.execution.batch.pass_layout import PassInputs


class ReferencePass(HostPass):
    def __init__(
        self,
        backend: HostBackend[Any],
        act: Act,
        inputs: PassInputs,
        kv_cache: ReferenceKVCache,
        batch: InputBatch,
        chunks: Sequence[Chunk],
    ):
        super().__init__(backend, inputs, batch, chunks)
        # Any: they take activations of this backend, where the protocol says that anybody's may come.
        rows: Any = RowOperations(act, inputs)
        self.embed, self.gather, self.clear, self.to_act = rows.embed, rows.gather, rows.clear, rows.to_act
        self.add_positions, self.add_token_types, self.mean = rows.add_positions, rows.add_token_types, rows.mean
        self.rms_norm, self.layer_norm, self.add = rows.rms_norm, rows.layer_norm, rows.add
        self.layer_norm_sum = rows.layer_norm_sum
        self.scale, self.soft_cap, self.activate = rows.scale, rows.soft_cap, rows.activate
        self.add_gated, self.gate = rows.add_gated, rows.gate
        products: Any = ProductOperations(act, AddedRows(inputs.adapted, act))
        self.linear, self.linear_residual = products.linear, products.linear_residual
        self.linear_act = products.linear_act
        self.gate_up, self.experts, self.by_head = products.gate_up, products.experts, products.by_head
        cached: Any = AttentionOperations(act, inputs.metadata, kv_cache)
        self.rope_and_write_kv, self.rope_and_write_latent = cached.rope_and_write_kv, cached.rope_and_write_latent
        self.attention = cached.attention
        if inputs.states is not None:
            assert isinstance(batch.states, ReferenceStates)
            recurrent: Any = RecurrentOperations(act, inputs.metadata, batch.states, inputs.states)
            self.convolve, self.convolve_gated = recurrent.convolve, recurrent.convolve_gated
            self.delta_rule = recurrent.delta_rule
