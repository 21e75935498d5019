"""Llama 2 and 3: full attention in every layer, a gated MLP."""

from __future__ import annotations

from inflight.models.family import Family, attention, dense
from inflight.models.fields import Fields
from inflight.models.spec import LayerSpec


def layers(fields: Fields) -> LayerSpec:
    return LayerSpec(attention(fields, bias="attention_bias"), dense(fields, bias=fields.flag("mlp_bias")))


FAMILY = Family(
    name="llama",
    architectures=("LlamaForCausalLM",),
    model_types=("llama",),
    layers=layers,
    defaults={"max_position_embeddings": 2048},
    runs=True,
)
