"""Granite, dense: Llama's layers with four factors, on embeddings, residuals, scores and logits."""

from __future__ import annotations

from inflight.models.family import Family, attention, dense
from inflight.models.fields import Fields
from inflight.models.spec import LayerSpec


def layers(fields: Fields) -> LayerSpec:
    mixer = attention(fields, bias="attention_bias", scale=fields.number("attention_multiplier"))
    return LayerSpec(mixer, dense(fields, bias=fields.flag("mlp_bias")))


FAMILY = Family(
    name="granite",
    architectures=("GraniteForCausalLM",),
    model_types=("granite",),
    layers=layers,
    understands=frozenset(("embedding_multiplier", "residual_multiplier", "attention_multiplier", "logits_scaling")),
    defaults={"max_position_embeddings": 2048},
    runs=True,
    embedding_scale=lambda fields: fields.number("embedding_multiplier"),
    logit_scale=lambda fields: 1 / fields.number("logits_scaling"),
    residual_scale=lambda fields: fields.number("residual_multiplier"),
)
