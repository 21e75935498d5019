"""Arcee (AFM): Llama's attention, a plain MLP with squared ReLU."""

from __future__ import annotations

from inflight.models.family import Family, attention, dense
from inflight.models.spec import LayerSpec

FAMILY = Family(
    name="arcee",
    architectures=("ArceeForCausalLM",),
    model_types=("arcee",),
    layers=lambda fields: LayerSpec(
        attention(fields, bias="attention_bias"), dense(fields, gated=False, bias=fields.flag("mlp_bias"))
    ),
    defaults={"hidden_act": "relu2", "rms_norm_eps": 1e-5, "max_position_embeddings": 4096},
    runs=True,
)
