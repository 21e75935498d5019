"""Qwen3-Next and Qwen 3.5: three layers of Gated DeltaNet to one of attention with an output gate; dense, or experts
with a gated shared one."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from inflight.models.families.qwen_moe import EXPERTS, mlps, router
from inflight.models.family import FULL, Family, attention, dense, experts, rotation
from inflight.models.fields import Fields
from inflight.models.mixers.deltanet import LinearAttention
from inflight.models.parts import Mlp
from inflight.models.spec import LayerSpec

_LINEAR = "linear_attention"
_HYBRID = frozenset(("linear_num_value_heads", "attn_output_gate"))
_DEFAULTS: dict[str, Any] = {
    "num_key_value_heads": 2,
    "head_dim": 256,
    "max_position_embeddings": 32_768,
    "full_attention_interval": 4,
    "linear_num_key_heads": 16,
    "linear_num_value_heads": 32,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    "linear_conv_kernel_dim": 4,
    "attn_output_gate": True,
    "partial_rotary_factor": 0.25,
}
_EXPERT_DEFAULTS = {**_DEFAULTS, "shared_expert_intermediate_size": 512, "norm_topk_prob": True}
# Queries and their gate are one matrix, head by head (`checkpoints.family_names`).
_GATE = {"self_attn.gate_proj": "self_attn.q_proj"}


def with_experts(fields: Fields) -> list[LayerSpec]:
    shared = fields.count("shared_expert_intermediate_size")
    sparse = experts(fields, "num_experts", router=router(fields), shared_width=shared, shared_gate=True)
    return _layers(fields, mlps(fields, sparse))


def without(fields: Fields) -> list[LayerSpec]:
    return _layers(fields, [dense(fields)] * fields.layers)


def _layers(fields: Fields, parts: Sequence[Mlp]) -> list[LayerSpec]:
    full = attention(fields, qk_norm="head", bias="attention_bias", gate=fields.flag("attn_output_gate"))
    linear = LinearAttention(
        key_heads=fields.size("linear_num_key_heads"),
        value_heads=fields.size("linear_num_value_heads"),
        key_dim=fields.size("linear_key_head_dim"),
        value_dim=fields.size("linear_value_head_dim"),
        kernel=fields.size("linear_conv_kernel_dim"),
    )
    types = fields.layer_types((FULL, _LINEAR))
    interval = fields.size("full_attention_interval")
    return [
        LayerSpec(full if (types[index] == FULL if types else (index + 1) % interval == 0) else linear, mlp)
        for index, mlp in enumerate(parts)
    ]


# What they have in common.
_FAMILY = partial(Family, runs=True, norm_offset=True, rope=rotation(partial=True))
QWEN3_NEXT = _FAMILY(
    name="qwen3_next",
    architectures=("Qwen3NextForCausalLM",),
    model_types=("qwen3_next",),
    layers=with_experts,
    understands=_HYBRID | EXPERTS,
    defaults=_EXPERT_DEFAULTS,
    names={
        **_GATE,
        **dict.fromkeys(("linear_attn.in_proj_qkv", "linear_attn.in_proj_z"), "linear_attn.in_proj_qkvz"),
        **dict.fromkeys(("linear_attn.in_proj_b", "linear_attn.in_proj_a"), "linear_attn.in_proj_ba"),
    },
)
QWEN3_5 = _FAMILY(
    name="qwen3_5",
    architectures=("Qwen3_5ForCausalLM",),
    model_types=("qwen3_5", "qwen3_5_text"),
    layers=without,
    understands=_HYBRID,
    defaults={**_DEFAULTS, "num_key_value_heads": 4},
    names=_GATE,
    wrappers=("Qwen3_5ForConditionalGeneration",),
)
QWEN3_5_MOE = _FAMILY(
    name="qwen3_5_moe",
    architectures=("Qwen3_5MoeForCausalLM",),
    model_types=("qwen3_5_moe", "qwen3_5_moe_text"),
    layers=with_experts,
    understands=_HYBRID | EXPERTS,
    defaults=_EXPERT_DEFAULTS,
    names=_GATE,
    wrappers=("Qwen3_5MoeForConditionalGeneration",),
)
