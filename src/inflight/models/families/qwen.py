"""Qwen 2 and 3, dense: windows from some layer on, where they are switched on; 2 has biases of queries, keys and
values, 3 norms of queries and keys. MiMo is as Qwen 2; its layers that only predict further tokens are left out."""

from __future__ import annotations

from inflight.json_file import shown
from inflight.models.errors import ModelError
from inflight.models.family import FULL, SLIDING, Family, attention, dense, rope
from inflight.models.fields import Fields
from inflight.models.mixers.attention import Attention
from inflight.models.rope import RopeSettings
from inflight.models.spec import LayerSpec

_DEFAULTS = {"num_key_value_heads": 32, "max_position_embeddings": 32_768, "sliding_window": 4096}


def qwen2(fields: Fields) -> list[LayerSpec]:
    mlp = dense(fields)
    return [LayerSpec(attention(fields, window=window, qkv_bias=True), mlp) for window in _windows(fields)]


def qwen3(fields: Fields) -> list[LayerSpec]:
    mlp = dense(fields)
    return [
        LayerSpec(attention(fields, window=window, qk_norm="head", bias="attention_bias"), mlp)
        for window in _windows(fields)
    ]


def _rope(fields: Fields, mixer: Attention, layer: int) -> RopeSettings:
    """Beside images a token has three positions (mrope); in a text they are one."""
    scaling = fields.raw("rope_scaling")
    if isinstance(scaling, dict) and "mrope" in (scaling.get("rope_type"), scaling.get("type")):
        fields = Fields({**fields.data, "rope_scaling": None}, {})
    return rope(fields, mixer)


def _windows(fields: Fields) -> list[int]:
    """Window of each layer in tokens, 0 for none."""
    types = fields.layer_types((FULL, SLIDING))
    window = fields.window if fields.flag("use_sliding_window") else 0
    if types is None:
        first = fields.data.get("max_window_layers", 28) if window else 0
        if isinstance(first, bool) or not isinstance(first, int):
            raise ModelError(f"max_window_layers in config.json must be a whole number, not {shown(first)}.")
        return [window if layer >= first else 0 for layer in range(fields.layers)]
    if SLIDING in types and not window:
        raise ModelError("layer_types asks for sliding_attention, but use_sliding_window or sliding_window is not set.")
    return [window if kind == SLIDING else 0 for kind in types]


QWEN2 = Family(
    name="qwen2",
    architectures=("Qwen2ForCausalLM", "MiMoForCausalLM"),
    model_types=("qwen2", "mimo", "qwen2_vl_text", "qwen2_5_vl_text"),
    layers=qwen2,
    understands=frozenset(("use_sliding_window",)),
    defaults=_DEFAULTS,
    runs=True,
    rope=_rope,
    wrappers=("Qwen2VLForConditionalGeneration", "Qwen2_5_VLForConditionalGeneration"),
)
QWEN3 = Family(
    name="qwen3",
    architectures=("Qwen3ForCausalLM",),
    model_types=("qwen3",),
    layers=qwen3,
    understands=frozenset(("use_sliding_window",)),
    defaults={**_DEFAULTS, "head_dim": 128},
    runs=True,
)
