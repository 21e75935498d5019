"""OLMo 2 and 3: norms after attention and MLP only, and of queries and keys over all heads; 3 gives three layers of
four a window."""

from __future__ import annotations

from inflight.models.family import Family, attention, dense, windows_of
from inflight.models.fields import Fields
from inflight.models.spec import LayerSpec


def olmo3(fields: Fields) -> list[LayerSpec]:
    return [_layer(fields, window) for window in windows_of(fields, lambda index: (index + 1) % 4 != 0)]


def _layer(fields: Fields, window: int) -> LayerSpec:
    mixer = attention(fields, window=window, qk_norm="all", bias="attention_bias")
    return LayerSpec(mixer, dense(fields), ("after mixer", "after mlp"))


OLMO2 = Family(
    name="olmo2",
    architectures=("Olmo2ForCausalLM",),
    model_types=("olmo2",),
    layers=lambda fields: _layer(fields, 0),
    defaults={"max_position_embeddings": 2048},
)
OLMO3 = Family(
    name="olmo3",
    architectures=("Olmo3ForCausalLM",),
    model_types=("olmo3",),
    layers=olmo3,
    defaults={"max_position_embeddings": 2048, "sliding_window": 4096},
)
