"""gpt-oss: sinks in attention, a short window in every other layer, experts, and biases everywhere."""

from __future__ import annotations

from inflight.json_file import shown
from inflight.models.errors import ModelError
from inflight.models.family import Family, attention, experts, windows_of
from inflight.models.fields import Fields
from inflight.models.mlps.moe import CLAMPED_SWIGLU, Router
from inflight.models.spec import LayerSpec

_SWIGLU = {"swiglu_alpha": 1.702, "swiglu_limit": 7.0}


def layers(fields: Fields) -> list[LayerSpec]:
    for key, value in _SWIGLU.items():
        if fields.number(key, value) != value:
            raise ModelError(
                f"{key} in config.json is {shown(fields.raw(key))}, but of gpt-oss's clamped SwiGLU only that of the "
                f"published models ({value:g}) is known; take one of them."
            )
    mlp = experts(
        fields,
        "num_local_experts",
        width="intermediate_size",
        router=Router(renormalize=True, bias=True),  # a softmax over the picked alone is the same
        bias=True,
        act=CLAMPED_SWIGLU,
    )
    return [
        LayerSpec(attention(fields, window=window, sinks=True, bias="attention_bias"), mlp)
        for window in windows_of(fields, lambda index: index % 2 == 0)
    ]


FAMILY = Family(
    name="gpt_oss",
    architectures=("GptOssForCausalLM",),
    model_types=("gpt_oss",),
    layers=layers,
    understands=frozenset(("num_local_experts",)),
    defaults={
        "num_key_value_heads": 8,
        "head_dim": 64,
        "rope_theta": 150_000.0,
        "num_local_experts": 128,
        "num_experts_per_tok": 4,
        "attention_bias": True,
        "sliding_window": 128,
        "max_position_embeddings": 131_072,
        "rms_norm_eps": 1e-5,
    },
    runs=True,
)
