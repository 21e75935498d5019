"""Gemma 1 to 3: scaled embeddings, one table for input and output, norms whose weights are stored less 1; 2 and 3 norm
what comes out of attention and MLP, too, and give most layers a window; 2 caps scores and logits, 3 norms queries and
keys, and rotates layers with a window by another base.

The factor of embeddings is exact here, as where `transformers` computes in float32; in bf16 it rounds it.
"""

from __future__ import annotations

import math

from msgspec.structs import replace

from inflight.models.errors import ModelError
from inflight.models.family import SANDWICH, SLIDING, Family, attention, dense, rope, rotation, windows_of
from inflight.models.fields import Fields
from inflight.models.mixers.attention import Attention, QkNorm
from inflight.models.pooler import of_decoder
from inflight.models.rope import RopeSettings
from inflight.models.spec import LayerSpec, Pooler

_BOTH_SIDES = "use_bidirectional_attention"


def gemma1(fields: Fields) -> LayerSpec:
    """Build a Gemma 1 layer. The first config.json files say `gelu` where the model uses its tanh approximation."""
    act = fields.text("hidden_act", "gelu_pytorch_tanh")
    mlp = dense(fields, act="gelu_pytorch_tanh" if act == "gelu" else act)
    return LayerSpec(attention(fields, bias="attention_bias"), mlp)


def _windowed(fields: Fields, period: int, qk_norm: QkNorm) -> list[LayerSpec]:
    """One layer in `period` sees all. Where tokens see those behind them, too, a window is as wide to both sides
    together."""
    causal = not fields.flag(_BOTH_SIDES)
    mlp = dense(fields, act=fields.text("hidden_activation", "gelu_pytorch_tanh"))
    scale, soft_cap = fields.number("query_pre_attn_scalar") ** -0.5, fields.optional("attn_logit_softcapping")
    return [
        LayerSpec(
            attention(
                fields,
                window=window if causal else window // 2,
                qk_norm=qk_norm,
                bias="attention_bias",
                scale=scale,
                soft_cap=soft_cap,
                causal=causal,
            ),
            mlp,
            SANDWICH,
        )
        for window in windows_of(fields, lambda index: (index + 1) % period != 0)
    ]


def _scale(fields: Fields) -> float:
    return math.sqrt(fields.size("hidden_size"))


def _rope(fields: Fields, mixer: Attention, layer: int) -> RopeSettings:
    """Before `rope_parameters` had an object for each kind, those with a window had one number of their own."""
    by_kind = fields.raw("rope_parameters")
    if mixer.window and not (isinstance(by_kind, dict) and isinstance(by_kind.get(SLIDING), dict)):
        theta = fields.number("rope_local_base_freq")
        local = Fields({"rope_theta": theta, "max_position_embeddings": fields.size("max_position_embeddings")}, {})
        return rope(local, mixer)
    return rotation(by_window=True)(fields, mixer, layer)


def _pooler(architecture: str, fields: Fields) -> Pooler | None:
    """EmbeddingGemma is Gemma 3 that sees to both sides, and makes a vector of all tokens. Raises ModelError where such
    a one is to continue texts."""
    found = of_decoder(architecture, fields)
    if not fields.flag(_BOTH_SIDES):
        return found
    if found is None:
        raise ModelError(
            f"{_BOTH_SIDES} is set, but {architecture} continues texts and cannot see later tokens; take the "
            "model's config.json, which names Gemma3TextModel."
        )
    return found if found.labels else replace(found, pooling="mean")


_DEFAULTS = {"head_dim": 256, "tie_word_embeddings": True, "query_pre_attn_scalar": 256}
_UNDERSTANDS = frozenset(("query_pre_attn_scalar", "attn_logit_softcapping", "final_logit_softcapping"))
GEMMA = Family(
    name="gemma",
    architectures=("GemmaForCausalLM",),
    model_types=("gemma",),
    layers=gemma1,
    defaults={**_DEFAULTS, "max_position_embeddings": 8192},
    runs=True,
    norm_offset=True,
    embedding_scale=_scale,
)
GEMMA2 = Family(
    name="gemma2",
    architectures=("Gemma2ForCausalLM",),
    model_types=("gemma2",),
    layers=lambda fields: _windowed(fields, 2, "none"),
    understands=_UNDERSTANDS,
    defaults={
        **_DEFAULTS,
        "num_key_value_heads": 4,
        "sliding_window": 4096,
        "attn_logit_softcapping": 50.0,
        "final_logit_softcapping": 30.0,
        "max_position_embeddings": 8192,
    },
    runs=True,
    norm_offset=True,
    embedding_scale=_scale,
    logit_cap=lambda fields: fields.optional("final_logit_softcapping"),
)
GEMMA3 = Family(
    name="gemma3",
    architectures=("Gemma3ForCausalLM", "Gemma3TextModel", "Gemma3TextForSequenceClassification"),
    model_types=("gemma3", "gemma3_text"),
    layers=lambda fields: _windowed(fields, fields.size("sliding_window_pattern"), "head"),
    understands=_UNDERSTANDS | {_BOTH_SIDES},
    defaults={
        **_DEFAULTS,
        "vocab_size": 262_208,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "sliding_window": 4096,
        "sliding_window_pattern": 6,
        "rope_theta": 1e6,
        "rope_local_base_freq": 1e4,
        "max_position_embeddings": 131_072,
    },
    runs=True,
    norm_offset=True,
    embedding_scale=_scale,
    logit_cap=lambda fields: fields.optional("final_logit_softcapping"),
    rope=_rope,
    pooler=_pooler,
    wrappers=("Gemma3ForConditionalGeneration",),
)
