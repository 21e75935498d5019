"""Phi: 1 and 2 compute attention and a plain MLP side by side, with one layer norm and biases everywhere; 3 and 4 are
Llama's layers with stacked projections and a partial rotation."""

from __future__ import annotations

from inflight.models.family import Family, attention, dense
from inflight.models.fields import Fields
from inflight.models.spec import LayerSpec


def phi(fields: Fields) -> list[LayerSpec]:
    mixer = attention(fields, qkv_bias=True, output_bias=True)
    return [LayerSpec(mixer, dense(fields, gated=False, bias=True), ("before mixer",))] * fields.layers


def phi3(fields: Fields) -> list[LayerSpec]:
    return [LayerSpec(attention(fields, window=fields.window), dense(fields))] * fields.layers


PHI = Family(
    name="phi",
    architectures=("PhiForCausalLM",),
    model_types=("phi",),
    layers=phi,
    defaults={"hidden_act": "gelu_new", "max_position_embeddings": 2048},
    norm="layer",
    eps="layer_norm_eps",
    head_bias=True,
)
PHI3 = Family(
    name="phi3",
    architectures=("Phi3ForCausalLM",),
    model_types=("phi3",),
    layers=phi3,
    defaults={"max_position_embeddings": 4096},
)
