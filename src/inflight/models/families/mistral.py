"""Mistral: Llama's layers, and in early versions one window for all of them; Ministral gives some layers a
window; in Ministral 3 queries grow with their position."""

from __future__ import annotations

from inflight.models.errors import ModelError
from inflight.models.family import FULL, SLIDING, Family, attention, dense, windows_of
from inflight.models.fields import Fields
from inflight.models.spec import LayerSpec


def layers(fields: Fields) -> LayerSpec:
    types = fields.layer_types((FULL, SLIDING))
    if types and len(set(types)) > 1:
        raise ModelError("layer_types mixes kinds of attention, which MistralForCausalLM does not have.")
    return LayerSpec(attention(fields, window=fields.window), dense(fields))


def ministral(fields: Fields) -> list[LayerSpec]:
    mlp = dense(fields)
    return [LayerSpec(attention(fields, window=window), mlp) for window in windows_of(fields, lambda index: True)]


FAMILY = Family(
    name="mistral",
    architectures=("MistralForCausalLM",),
    model_types=("mistral",),
    layers=layers,
    defaults={"num_key_value_heads": 8, "max_position_embeddings": 131_072, "sliding_window": 4096},
    runs=True,
    wrappers=("Mistral3ForConditionalGeneration",),
)
MINISTRAL = Family(
    name="ministral",
    architectures=("MinistralForCausalLM",),
    model_types=("ministral",),
    layers=ministral,
    defaults={"num_key_value_heads": 8, "max_position_embeddings": 131_072, "sliding_window": 4096},
    runs=True,
)
MINISTRAL3 = Family(
    name="ministral3",
    architectures=("Ministral3ForCausalLM",),
    model_types=("ministral3",),
    layers=layers,
    defaults={
        "num_key_value_heads": 8,
        "head_dim": 128,
        "rms_norm_eps": 1e-5,
        "rope_theta": 1e6,
        "max_position_embeddings": 262_144,
    },
    runs=True,
    wrappers=("Mistral3ForConditionalGeneration",),
)
