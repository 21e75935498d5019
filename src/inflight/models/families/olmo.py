"""OLMo 2 and 3: norms after attention and MLP only, and of queries and keys over all heads; 3 gives three layers of
four a window, and stretches the rotation of the others alone."""

from __future__ import annotations

from inflight.models.family import Family, attention, dense, rope, rotation, windows_of
from inflight.models.fields import Fields
from inflight.models.mixers.attention import Attention
from inflight.models.rope import RopeSettings
from inflight.models.spec import LayerSpec


def olmo3(fields: Fields) -> list[LayerSpec]:
    return [_layer(fields, window) for window in windows_of(fields, lambda index: (index + 1) % 4 != 0)]


def _layer(fields: Fields, window: int) -> LayerSpec:
    mixer = attention(fields, window=window, qk_norm="all", bias="attention_bias")
    return LayerSpec(mixer, dense(fields), ("after mixer", "after mlp"))


def _rope(fields: Fields, mixer: Attention, layer: int) -> RopeSettings:
    """Before `rope_parameters` had an object for each kind, `rope_scaling` was of layers without a window."""
    if mixer.window and fields.raw("rope_scaling"):
        return rope(Fields({**fields.data, "rope_scaling": None}, {}), mixer)
    return rotation(by_window=True)(fields, mixer, layer)


OLMO2 = Family(
    name="olmo2",
    architectures=("Olmo2ForCausalLM",),
    model_types=("olmo2",),
    layers=lambda fields: _layer(fields, 0),
    defaults={"rms_norm_eps": 1e-5, "max_position_embeddings": 2048},
    runs=True,
)
OLMO3 = Family(
    name="olmo3",
    architectures=("Olmo3ForCausalLM",),
    model_types=("olmo3",),
    layers=olmo3,
    defaults={"rms_norm_eps": 1e-5, "rope_theta": 5e5, "max_position_embeddings": 2048, "sliding_window": 4096},
    runs=True,
    rope=_rope,
)
