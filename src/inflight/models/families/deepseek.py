"""DeepSeek-V2 and -V3, and Kimi-K2 in V3's shape: latent attention; some dense layers, then experts with shared ones.

The layers that only predict further tokens, for speculation, are left out, as they are from the published sizes.
"""

from __future__ import annotations

from inflight.models.errors import ModelError
from inflight.models.family import Family, dense, experts
from inflight.models.fields import Fields
from inflight.models.mixers.mla import LatentAttention
from inflight.models.mlps.moe import Router
from inflight.models.rope import RopeSettings
from inflight.models.spec import LayerSpec


def layers(fields: Fields) -> list[LayerSpec]:
    rotated = fields.size("qk_rope_head_dim")
    if rotated % 2:
        raise ModelError(
            f"qk_rope_head_dim in config.json must be even to be rotated in pairs, but it is {rotated}; take another "
            "checkpoint."
        )
    mixer = LatentAttention(
        heads=fields.size("num_attention_heads"),
        kv_lora_rank=fields.size("kv_lora_rank"),
        q_lora_rank=0 if fields.raw("q_lora_rank") is None else fields.size("q_lora_rank"),
        qk_nope_head_dim=fields.size("qk_nope_head_dim"),
        qk_rope_head_dim=rotated,
        v_head_dim=fields.size("v_head_dim"),
        bias=fields.flag("attention_bias"),
        rope=RopeSettings.from_dict(
            fields.data,
            rotated,
            fields.size("max_position_embeddings"),
            interleaved="rope_interleave" not in fields or fields.flag("rope_interleave"),
        ),
    )
    sparse = experts(
        fields,
        "n_routed_experts",
        router=_router(fields),
        shared_width=fields.count("n_shared_experts") * fields.size("moe_intermediate_size"),
    )
    plain = dense(fields, bias=fields.flag("mlp_bias"))
    first, every = fields.count("first_k_dense_replace"), fields.size("moe_layer_freq", 1)
    return [
        LayerSpec(mixer, sparse if index >= first and index % every == 0 else plain) for index in range(fields.layers)
    ]


def _router(fields: Fields) -> Router:
    """By `topk_method`: greedy; the groups with the best expert; or with the best two, where a correction counts."""
    method = fields.text("topk_method", "greedy")
    in_groups = method != "greedy"
    return Router(
        scores="sigmoid" if fields.text("scoring_func", "softmax") == "sigmoid" else "softmax",
        renormalize=fields.flag("norm_topk_prob"),
        correction=method == "noaux_tc",
        groups=fields.size("n_group", 1) if in_groups else 1,
        top_groups=fields.size("topk_group", 1) if in_groups else 1,
        group_best=1 if method == "group_limited_greedy" else 2,
        scale=fields.number("routed_scaling_factor"),
    )


_UNDERSTANDS = frozenset(("kv_lora_rank", "n_routed_experts", "first_k_dense_replace"))
V2 = Family(
    name="deepseek_v2",
    architectures=("DeepseekV2ForCausalLM",),
    model_types=("deepseek_v2",),
    layers=layers,
    understands=_UNDERSTANDS,
    defaults={"max_position_embeddings": 2048, "q_lora_rank": 1536, "n_shared_experts": 2},
    runs=True,
)
V3 = Family(
    name="deepseek_v3",
    architectures=("DeepseekV3ForCausalLM",),
    model_types=("deepseek_v3", "kimi_k2"),
    layers=layers,
    understands=_UNDERSTANDS,
    runs=True,
    defaults={
        "max_position_embeddings": 4096,
        "q_lora_rank": 1536,
        "first_k_dense_replace": 3,
        "n_shared_experts": 1,
        "scoring_func": "sigmoid",
        "topk_method": "noaux_tc",
        "n_group": 8,
        "topk_group": 4,
        "norm_topk_prob": True,
        "routed_scaling_factor": 2.5,
    },
)
