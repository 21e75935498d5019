"""SmolLM3: Llama's layers, of which every fourth does not rotate, or those that `no_rope_layers` marks with 0."""

from __future__ import annotations

from inflight.json_file import shown
from inflight.models.errors import ModelError
from inflight.models.families.llama import layers
from inflight.models.family import Family, rope
from inflight.models.fields import Fields
from inflight.models.mixers.attention import Attention
from inflight.models.rope import RopeSettings


def _rope(fields: Fields, mixer: Attention, layer: int) -> RopeSettings | None:
    return rope(fields, mixer) if _rotates(fields, layer) else None


def _rotates(fields: Fields, layer: int) -> bool:
    marks = fields.raw("no_rope_layers")
    if marks is None:
        return (layer + 1) % fields.size("no_rope_layer_interval") != 0
    if not isinstance(marks, list) or len(marks) < fields.layers or any(mark not in (0, 1) for mark in marks):
        raise ModelError(
            f"no_rope_layers in config.json must hold a 1 (rotates) or a 0 for each of the {fields.layers} layers, not "
            f"{shown(marks)}."
        )
    return bool(marks[layer])


FAMILY = Family(
    name="smollm3",
    architectures=("SmolLM3ForCausalLM",),
    model_types=("smollm3",),
    layers=layers,
    understands=frozenset(("no_rope_layers",)),
    defaults={
        "num_key_value_heads": 4,
        "no_rope_layer_interval": 4,
        "rope_theta": 2e6,
        "max_position_embeddings": 32_768,
        "tie_word_embeddings": True,
    },
    runs=True,
    rope=_rope,
)
