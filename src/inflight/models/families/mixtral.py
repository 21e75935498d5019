"""Mixtral: Mistral's attention, experts in every layer."""

from __future__ import annotations

from inflight.models.family import Family, attention, experts
from inflight.models.mlps.moe import Router
from inflight.models.spec import LayerSpec

FAMILY = Family(
    name="mixtral",
    architectures=("MixtralForCausalLM",),
    model_types=("mixtral",),
    layers=lambda fields: LayerSpec(
        attention(fields, window=fields.window),
        experts(fields, "num_local_experts", width="intermediate_size", router=Router(renormalize=True)),
    ),
    understands=frozenset(("num_local_experts",)),
    defaults={
        "num_key_value_heads": 8,
        "num_local_experts": 8,
        "num_experts_per_tok": 2,
        "max_position_embeddings": 131_072,
        "rms_norm_eps": 1e-5,
    },
    runs=True,
)
