"""Llama 2 and 3: full attention in every layer, a gated MLP."""

from __future__ import annotations

from inflight.models.family import Family, attention, dense
from inflight.models.fields import Fields
from inflight.models.spec import LayerSpec


def layers(fields: Fields) -> list[LayerSpec]:
    bias = fields.flag("attention_bias")
    mixer = attention(fields, qkv_bias=bias, output_bias=bias)
    return [LayerSpec(mixer, dense(fields, bias=fields.flag("mlp_bias")))] * fields.layers


FAMILY = Family(
    name="llama",
    architectures=("LlamaForCausalLM",),
    model_types=("llama",),
    layers=layers,
    defaults={"max_position_embeddings": 2048},
    runs=True,
)
