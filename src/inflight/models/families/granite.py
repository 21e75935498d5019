"""Granite, dense: Llama's layers with four factors, on embeddings, residuals, scores and logits."""

from __future__ import annotations

from inflight.models.families.llama import layers
from inflight.models.family import Family

FAMILY = Family(
    name="granite",
    architectures=("GraniteForCausalLM",),
    model_types=("granite",),
    layers=layers,
    understands=frozenset(("embedding_multiplier", "residual_multiplier", "attention_multiplier", "logits_scaling")),
    defaults={"max_position_embeddings": 2048},
    embedding_scale=lambda fields: fields.number("embedding_multiplier"),
    logit_scale=lambda fields: 1 / fields.number("logits_scaling"),
)
