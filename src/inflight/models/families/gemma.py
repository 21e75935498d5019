"""Gemma 1 to 3: scaled embeddings, one table for input and output; 2 and 3 norm what comes out of attention and MLP,
too, and give most layers a window; 2 caps its logits, 3 norms queries and keys."""

from __future__ import annotations

import math

from inflight.models.family import Family, attention, dense, windows_of
from inflight.models.fields import Fields
from inflight.models.spec import LayerSpec, NormPlace, QkNorm

_FOUR: tuple[NormPlace, ...] = ("before mixer", "after mixer", "before mlp", "after mlp")


def _windowed(fields: Fields, period: int, qk_norm: QkNorm) -> list[LayerSpec]:
    """One layer in `period` sees all."""
    mlp = dense(fields)
    return [
        LayerSpec(attention(fields, window=window, qk_norm=qk_norm, bias="attention_bias"), mlp, _FOUR)
        for window in windows_of(fields, lambda index: (index + 1) % period != 0)
    ]


def _scale(fields: Fields) -> float:
    return math.sqrt(fields.size("hidden_size"))


_DEFAULTS = {"head_dim": 256, "hidden_act": "gelu_pytorch_tanh", "tie_word_embeddings": True}
_UNDERSTANDS = frozenset(("query_pre_attn_scalar", "attn_logit_softcapping", "final_logit_softcapping"))
GEMMA = Family(
    name="gemma",
    architectures=("GemmaForCausalLM",),
    model_types=("gemma",),
    layers=lambda fields: LayerSpec(attention(fields, bias="attention_bias"), dense(fields)),
    defaults={**_DEFAULTS, "max_position_embeddings": 8192},
    norm_offset=True,
    embedding_scale=_scale,
)
GEMMA2 = Family(
    name="gemma2",
    architectures=("Gemma2ForCausalLM",),
    model_types=("gemma2",),
    layers=lambda fields: _windowed(fields, 2, "none"),
    understands=_UNDERSTANDS,
    defaults={**_DEFAULTS, "num_key_value_heads": 4, "sliding_window": 4096, "max_position_embeddings": 8192},
    norm_offset=True,
    embedding_scale=_scale,
)
GEMMA3 = Family(
    name="gemma3",
    architectures=("Gemma3ForCausalLM",),
    model_types=("gemma3", "gemma3_text"),
    layers=lambda fields: _windowed(fields, fields.size("sliding_window_pattern"), "head"),
    understands=_UNDERSTANDS,
    defaults={
        **_DEFAULTS,
        "vocab_size": 262_208,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "sliding_window": 4096,
        "sliding_window_pattern": 6,
        "max_position_embeddings": 131_072,
    },
    norm_offset=True,
    embedding_scale=_scale,
)
