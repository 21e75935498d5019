"""Apertus: Llama's attention with norms of each head's queries and keys, a plain MLP whose activation has learnt."""

from __future__ import annotations

from inflight.models.family import Family, attention, dense
from inflight.models.spec import LayerSpec

FAMILY = Family(
    name="apertus",
    architectures=("ApertusForCausalLM",),
    model_types=("apertus",),
    layers=lambda fields: LayerSpec(
        attention(fields, qk_norm="head", bias="attention_bias"), dense(fields, gated=False)
    ),
    defaults={
        "hidden_act": "xielu",
        "rms_norm_eps": 1e-5,
        "rope_theta": 12e6,
        "max_position_embeddings": 65_536,
        "rope_parameters": {
            "rope_type": "llama3",
            "rope_theta": 12e6,
            "factor": 8.0,
            "original_max_position_embeddings": 8192,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
        },
    },
    runs=True,
    names={"input_layernorm": "attention_layernorm", "post_attention_layernorm": "feedforward_layernorm"},
)
