"""EXAONE 4: norms after attention and MLP only, and of each head's queries and keys; where layers have windows, those
without one do not rotate."""

from __future__ import annotations

from inflight.models.family import Family, attention, dense, rope, windows_of
from inflight.models.fields import Fields
from inflight.models.mixers.attention import Attention
from inflight.models.rope import RopeSettings
from inflight.models.spec import LayerSpec


def layers(fields: Fields) -> list[LayerSpec]:
    mlp = dense(fields)
    return [
        LayerSpec(attention(fields, window=window, qk_norm="head"), mlp, ("after mixer", "after mlp"))
        for window in windows_of(fields, lambda index: _slides(fields, index))
    ]


def _slides(fields: Fields, index: int) -> bool:
    """Return whether a layer slides, by `sliding_window_pattern` (where there is no `layer_types`): all but every n-th,
    or those that an L marks."""
    pattern = fields.raw("sliding_window_pattern")
    if isinstance(pattern, str) and pattern and not set(pattern) - {"L", "G"}:
        return pattern[index % len(pattern)] == "L"
    return fields.window > 0 and (index + 1) % fields.size("sliding_window_pattern") != 0


def _rope(fields: Fields, mixer: Attention, layer: int) -> RopeSettings | None:
    return rope(fields, mixer) if mixer.window or not fields.window else None


FAMILY = Family(
    name="exaone4",
    architectures=("Exaone4ForCausalLM",),
    model_types=("exaone4",),
    layers=layers,
    defaults={
        "num_key_value_heads": 32,
        "rms_norm_eps": 1e-5,
        "max_position_embeddings": 2048,
        "sliding_window": 4096,
        "sliding_window_pattern": 4,
    },
    runs=True,
    rope=_rope,
)
