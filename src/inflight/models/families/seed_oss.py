"""Seed-OSS: Llama's layers, with a switch of its own for the bias after attention."""

from __future__ import annotations

from inflight.models.family import Family, attention, dense
from inflight.models.spec import LayerSpec

FAMILY = Family(
    name="seed_oss",
    architectures=("SeedOssForCausalLM",),
    model_types=("seed_oss",),
    layers=lambda fields: LayerSpec(
        attention(fields, qkv_bias=fields.flag("attention_bias"), output_bias=fields.flag("attention_out_bias")),
        dense(fields, bias=fields.flag("mlp_bias")),
    ),
    defaults={
        "num_key_value_heads": 8,
        "head_dim": 128,
        "attention_bias": True,
        "max_position_embeddings": 524_288,
    },
    runs=True,
)
