"""Phi: 1 and 2 compute attention and a plain MLP side by side, with one layer norm and biases everywhere; 3 and 4 are
Llama's layers with stacked projections and a partial rotation."""

from __future__ import annotations

from inflight.models.family import Family, attention, dense
from inflight.models.spec import LayerSpec

PHI = Family(
    name="phi",
    architectures=("PhiForCausalLM",),
    model_types=("phi",),
    layers=lambda fields: LayerSpec(
        attention(fields, qkv_bias=True, output_bias=True), dense(fields, gated=False, bias=True), ("before mixer",)
    ),
    defaults={"hidden_act": "gelu_new", "max_position_embeddings": 2048},
    norm="layer",
    eps="layer_norm_eps",
    head_bias=True,
)
PHI3 = Family(
    name="phi3",
    architectures=("Phi3ForCausalLM",),
    model_types=("phi3",),
    layers=lambda fields: LayerSpec(attention(fields, window=fields.window), dense(fields)),
    defaults={"max_position_embeddings": 4096},
)
