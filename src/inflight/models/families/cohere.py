"""Cohere's Command: attention and MLP side by side after one layer norm, scaled logits, one table; 2 gives three layers
of four a window."""

from __future__ import annotations

from inflight.models.family import Family, attention, dense, rope, rotation, windows_of
from inflight.models.fields import Fields
from inflight.models.mixers.attention import Attention, QkNorm
from inflight.models.rope import RopeSettings
from inflight.models.spec import LayerSpec

_DEFAULTS = {
    "logit_scale": 0.0625,
    "layer_norm_eps": 1e-5,
    "max_position_embeddings": 8192,
    "tie_word_embeddings": True,
}


def cohere2(fields: Fields) -> list[LayerSpec]:
    period = fields.size("sliding_window_pattern")
    return [_layer(fields, window) for window in windows_of(fields, lambda index: (index + 1) % period != 0)]


def _layer(fields: Fields, window: int) -> LayerSpec:
    qk_norm: QkNorm = "all" if fields.flag("use_qk_norm") else "none"
    mixer = attention(fields, window=window, qk_norm=qk_norm, bias="attention_bias")
    return LayerSpec(mixer, dense(fields), ("before mixer",))


def _rope2(fields: Fields, mixer: Attention, layer: int) -> RopeSettings | None:
    """Layers that see all do not rotate."""
    return rope(fields, mixer, interleaved=True) if mixer.window else None


COHERE = Family(
    name="cohere",
    architectures=("CohereForCausalLM",),
    model_types=("cohere",),
    layers=lambda fields: _layer(fields, 0),
    understands=frozenset(("logit_scale",)),
    defaults={**_DEFAULTS, "rope_theta": 5e5},
    runs=True,
    norm="layer without bias",
    eps="layer_norm_eps",
    logit_scale=lambda fields: fields.number("logit_scale"),
    rope=rotation(interleaved=True),
)
COHERE2 = Family(
    name="cohere2",
    architectures=("Cohere2ForCausalLM",),
    model_types=("cohere2",),
    layers=cohere2,
    understands=frozenset(("logit_scale",)),
    defaults={**_DEFAULTS, "sliding_window": 4096, "sliding_window_pattern": 4},
    runs=True,
    norm="layer without bias",
    eps="layer_norm_eps",
    logit_scale=lambda fields: fields.number("logit_scale"),
    rope=_rope2,
)
