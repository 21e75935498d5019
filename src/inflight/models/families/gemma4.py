"""Gemma 4: layers with a window and layers that see all have heads of their own number and width; values are normed,
and may be the keys as they are projected; later layers may read the keys and values of earlier ones; each layer may be
read the tokens' embeddings again; and experts may stand beside each MLP.

The factor of embeddings is exact here, as where `transformers` computes in float32; in bf16 it rounds it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from msgspec.structs import replace

from inflight.json_file import shown
from inflight.models.errors import ModelError
from inflight.models.family import (
    FULL,
    SANDWICH,
    SLIDING,
    Family,
    attention,
    dense,
    experts,
    rotation,
    share_kv,
    token_input,
    windows_of,
)
from inflight.models.fields import Fields
from inflight.models.mixers.attention import Attention
from inflight.models.mlps.moe import Router
from inflight.models.parts import Mlp
from inflight.models.spec import LayerSpec

_ROUTER = Router(renormalize=True, expert_scale=True, norm=True)


def layers(fields: Fields) -> list[LayerSpec]:
    if fields.raw("use_bidirectional_attention") == "all":
        raise ModelError(
            "use_bidirectional_attention is 'all': attention to later tokens, which this decoder does not compute; "
            "take a model that generates text."
        )
    windows = windows_of(fields, lambda index: (index + 1) % 6 != 0)
    windows[-1] = 0  # whatever is said of the last layer
    mixers = share_kv(fields, [_attention(fields, index, window) for index, window in enumerate(windows)])
    act = fields.text("hidden_activation", "gelu_pytorch_tanh")
    inputs = token_input(fields, act)
    return [LayerSpec(mixer, _mlp(fields, act, mixer), SANDWICH, inputs, scalar=True) for mixer in mixers]


def _attention(fields: Fields, layer: int, window: int) -> Attention:
    own = Fields({**fields.data, **_heads(fields, layer, window)}, {})
    found = attention(own, window=window, qk_norm="head", bias="attention_bias", scale=1.0)
    return replace(found, v_norm=True, k_eq_v=fields.flag("attention_k_eq_v") and not window)


def _heads(fields: Fields, layer: int, window: int) -> Mapping[str, object]:
    """Fields that a layer has otherwise than the model: stated by layer (`per_layer_config`), or of those that see
    all."""
    given = fields.raw("per_layer_config")
    if given is None:
        if window:
            return {}
        kv_heads = fields.raw("num_global_key_value_heads") if fields.flag("attention_k_eq_v") else None
        own = {"head_dim": fields.raw("global_head_dim"), "num_key_value_heads": kv_heads}
        return {key: value for key, value in own.items() if value is not None}
    found = given.get(str(layer), {}) if isinstance(given, Mapping) else None
    if not isinstance(found, Mapping) or set(found) - {"head_dim", "num_key_value_heads"}:
        raise ModelError(
            f"per_layer_config in config.json must be an object of layers, each with head_dim and num_key_value_heads, "
            f"not {shown(given)}."
        )
    return found


def _mlp(fields: Fields, act: str, mixer: Attention) -> Mlp:
    """Where keys and values are another layer's, the MLP may be twice as wide."""
    mlp = dense(fields, act=act)
    if mixer.kv_layer is not None and fields.flag("use_double_wide_mlp"):
        mlp = replace(mlp, width=2 * mlp.width)
    if not fields.flag("enable_moe_block"):
        return mlp
    mixture = experts(fields, "num_experts", top_k="top_k_experts", router=_ROUTER, shared_width=mlp.width, act=act)
    return replace(mixture, separate_shared=True)


GEMMA4 = Family(
    name="gemma4",
    architectures=("Gemma4ForCausalLM",),
    model_types=("gemma4", "gemma4_text"),
    layers=layers,
    understands=frozenset(
        (
            "final_logit_softcapping",
            "hidden_size_per_layer_input",
            "num_kv_shared_layers",
            "attention_k_eq_v",
            "enable_moe_block",
            "num_experts",
            "use_bidirectional_attention",
        )
    ),
    defaults={
        "vocab_size": 262_144,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "head_dim": 256,
        "global_head_dim": 512,
        "tie_word_embeddings": True,
        "sliding_window": 512,
        "max_position_embeddings": 131_072,
        "vocab_size_per_layer_input": 262_144,
        "hidden_size_per_layer_input": 256,
        "rope_parameters": {
            FULL: {"rope_type": "proportional", "partial_rotary_factor": 0.25, "rope_theta": 1e6},
            SLIDING: {"rope_type": "default", "rope_theta": 1e4},
        },
    },
    runs=True,
    embedding_scale=lambda fields: math.sqrt(fields.size("hidden_size")),
    logit_cap=lambda fields: fields.optional("final_logit_softcapping"),
    rope=rotation(by_window=True),
    names={
        "mlp.gate": "router.proj",
        "mlp.gate.scale": "router.scale",
        "mlp.gate.per_expert_scale": "router.per_expert_scale",
        "mlp.experts.gate_up_proj": "experts.gate_up_proj",
        "mlp.experts.down_proj": "experts.down_proj",
        **{f"mlp.shared_experts.{one}_proj": f"mlp.{one}_proj" for one in ("gate", "up", "down")},
    },
    wrappers=("Gemma4ForConditionalGeneration",),
)
