"""Gemma 4: layers with a window and layers that see all have heads of their own number and width; values are normed,
and may be the keys as they are projected; later layers may read the keys and values of earlier ones; each layer may be
read the tokens' embeddings again; and experts may stand beside each MLP.

The factor of embeddings is exact here, as where `transformers` computes in float32; in bf16 it rounds it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from msgspec.structs import replace

from inflight.json_file import shown
from inflight.models.errors import ModelError
from inflight.models.family import FULL, SLIDING, Family, attention, dense, experts, rope, windows_of
from inflight.models.fields import Fields
from inflight.models.mixers.attention import Attention
from inflight.models.mlps.dense import Dense
from inflight.models.mlps.moe import MoE, Router
from inflight.models.parts import Mixer
from inflight.models.rope import RopeSettings
from inflight.models.spec import LayerSpec, NormPlace, TokenInput

_FOUR: tuple[NormPlace, ...] = ("before mixer", "after mixer", "before mlp", "after mlp")
_ROUTER = Router(renormalize=True, expert_scale=True, norm=True)


def gemma4(fields: Fields) -> list[LayerSpec]:
    if fields.raw("use_bidirectional_attention") == "all":
        raise ModelError(
            "use_bidirectional_attention is 'all': attention to later tokens, which this decoder does not compute; "
            "take a model that generates text."
        )
    windows = windows_of(fields, lambda index: (index + 1) % 6 != 0)
    windows[-1] = 0  # whatever is said of the last layer
    first_shared = fields.layers - _shared_layers(fields)
    inputs = _token_input(fields)
    layers: list[LayerSpec] = []
    for index, window in enumerate(windows):
        mixer = _attention(fields, index, window)
        if index >= first_shared:
            read = _last(windows[:first_shared], window)
            _refuse_other_heads(index, mixer, read, layers[read].mixer)
            mixer = replace(mixer, kv_layer=read, k_eq_v=False, v_norm=False)
        layers.append(LayerSpec(mixer, _mlp(fields, index >= first_shared), _FOUR, inputs, scalar=True))
    return layers


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


def _shared_layers(fields: Fields) -> int:
    shared = fields.count("num_kv_shared_layers")
    if shared >= fields.layers:
        raise ModelError(
            f"num_kv_shared_layers is {shared}, but there are {fields.layers} layers, of which one must have keys and "
            "values of its own."
        )
    return shared


def _last(windows: Sequence[int], window: int) -> int:
    """Return the last layer with such a window among those that keep keys and values."""
    found = [index for index, one in enumerate(windows) if one == window]
    if not found:
        raise ModelError(
            f"num_kv_shared_layers leaves {len(windows)} layers with keys and values of their own, none of which looks "
            f"back as far as those that are to share them ({window or 'all'} tokens)."
        )
    return found[-1]


def _refuse_other_heads(layer: int, mixer: Attention, read: int, own: Mixer) -> None:
    """Raise ModelError unless the heads that share layer `read`'s keys and values have its head width and number."""
    if isinstance(own, Attention) and (mixer.head_dim, mixer.kv_heads) != (own.head_dim, own.kv_heads):
        raise ModelError(
            f"layer {layer} is to share the keys and values of layer {read}, but has {mixer.kv_heads} heads of "
            f"{mixer.head_dim} numbers and that one {own.kv_heads} of {own.head_dim}; head_dim, num_key_value_heads, "
            "per_layer_config and sliding_window in config.json must fit each other."
        )


def _mlp(fields: Fields, is_shared: bool) -> Dense | MoE:
    """is_shared: where keys and values are shared, the MLP may be twice as wide."""
    act = fields.text("hidden_activation", "gelu_pytorch_tanh")
    mlp = dense(fields, act=act)
    if is_shared and fields.flag("use_double_wide_mlp"):
        mlp = replace(mlp, width=2 * mlp.width)
    if not fields.flag("enable_moe_block"):
        return mlp
    mixture = experts(fields, "num_experts", top_k="top_k_experts", router=_ROUTER, shared_width=mlp.width, act=act)
    return replace(mixture, separate_shared=True)


def _token_input(fields: Fields) -> TokenInput | None:
    width = fields.count("hidden_size_per_layer_input")
    if not width:
        return None
    rows, needed = fields.size("vocab_size_per_layer_input"), fields.size("vocab_size")
    if rows < needed:
        raise ModelError(
            f"vocab_size_per_layer_input is {rows}, but a token may be any of {needed}; {shown(rows)} rows are too few."
        )
    return TokenInput(width=width, vocab_size=rows, activation=fields.text("hidden_activation", "gelu_pytorch_tanh"))


def _rope(fields: Fields, mixer: Attention, layer: int) -> RopeSettings:
    return rope(fields, mixer, kind=SLIDING if mixer.window else FULL)


GEMMA4 = Family(
    name="gemma4",
    architectures=("Gemma4ForCausalLM",),
    model_types=("gemma4", "gemma4_text"),
    layers=gemma4,
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
    logit_cap=lambda fields: (
        0.0 if fields.raw("final_logit_softcapping") is None else fields.number("final_logit_softcapping")
    ),
    rope=_rope,
    names={
        "mlp.gate": "router.proj",
        "mlp.gate.scale": "router.scale",
        "mlp.gate.per_expert_scale": "router.per_expert_scale",
        "mlp.experts.gate_up_proj": "experts.gate_up_proj",
        "mlp.experts.down_proj": "experts.down_proj",
        "mlp.shared_experts.gate_proj": "mlp.gate_proj",
        "mlp.shared_experts.up_proj": "mlp.up_proj",
        "mlp.shared_experts.down_proj": "mlp.down_proj",
    },
    wrappers=("Gemma4ForConditionalGeneration",),
)
