"""GLM-4: dense, with norms before and after attention and MLP; from 4.5 on some dense layers, then experts with a
shared one, and optional norms of queries and keys."""

from __future__ import annotations

from inflight.models.family import GATE_UP, SANDWICH, Family, attention, dense, experts, rotation
from inflight.models.fields import Fields
from inflight.models.mlps.moe import Router
from inflight.models.spec import LayerSpec


def glm4_moe(fields: Fields) -> list[LayerSpec]:
    mixer = attention(
        fields, qk_norm="head" if fields.flag("use_qk_norm") else "none", qkv_bias=fields.flag("attention_bias")
    )
    sparse = experts(
        fields,
        "n_routed_experts",
        router=grouped(fields),
        shared_width=fields.count("n_shared_experts") * fields.size("moe_intermediate_size"),
    )
    plain, first = dense(fields), fields.count("first_k_dense_replace")
    return [LayerSpec(mixer, sparse if index >= first else plain) for index in range(fields.layers)]


def grouped(fields: Fields) -> Router:
    """DeepSeek-V3's."""
    return Router(
        scores="sigmoid",
        renormalize=fields.flag("norm_topk_prob"),
        correction=True,
        groups=fields.size("n_group", 1),
        top_groups=fields.size("topk_group", 1),
        scale=fields.number("routed_scaling_factor"),
    )


GLM4 = Family(
    name="glm4",
    architectures=("Glm4ForCausalLM",),
    model_types=("glm4",),
    layers=lambda fields: LayerSpec(
        attention(fields, qkv_bias=fields.flag("attention_bias")),
        dense(fields),
        SANDWICH,
    ),
    defaults={
        "num_key_value_heads": 2,
        "head_dim": 128,
        "attention_bias": True,
        "rms_norm_eps": 1.5625e-7,
        "partial_rotary_factor": 0.5,
        "max_position_embeddings": 131_072,
    },
    runs=True,
    rope=rotation(partial=True, interleaved=True),
    names={
        **dict.fromkeys(GATE_UP, "mlp.gate_up_proj"),
        "post_attention_layernorm": "post_self_attn_layernorm",
        "pre_feedforward_layernorm": "post_attention_layernorm",
        "post_feedforward_layernorm": "post_mlp_layernorm",
    },
)
GLM4_MOE = Family(
    name="glm4_moe",
    architectures=("Glm4MoeForCausalLM",),
    model_types=("glm4_moe",),
    layers=glm4_moe,
    understands=frozenset(("n_routed_experts", "first_k_dense_replace")),
    defaults={
        "num_key_value_heads": 8,
        "n_shared_experts": 1,
        "first_k_dense_replace": 1,
        "norm_topk_prob": True,
        "partial_rotary_factor": 0.5,
        "max_position_embeddings": 131_072,
        "rms_norm_eps": 1e-5,
    },
    runs=True,
    rope=rotation(partial=True),
)
