"""Qwen 2 and 3 with experts: in every layer, or in every n-th but some; 2 has a gated shared expert."""

from __future__ import annotations

from inflight.models.family import Family, attention, dense, experts
from inflight.models.fields import Fields
from inflight.models.mlps.moe import MoE, Router
from inflight.models.parts import Mlp
from inflight.models.spec import LayerSpec

EXPERTS = frozenset(("num_experts", "num_local_experts", "mlp_only_layers", "decoder_sparse_step"))
_DEFAULTS = {"decoder_sparse_step": 1, "max_position_embeddings": 32_768}


def qwen2_moe(fields: Fields) -> list[LayerSpec]:
    mlp = experts(
        fields,
        "num_experts",
        router=router(fields),
        shared_width=fields.count("shared_expert_intermediate_size"),
        shared_gate=True,
    )
    mixer = attention(fields, qkv_bias=fields.flag("qkv_bias"))
    return [LayerSpec(mixer, one) for one in mlps(fields, mlp)]


def qwen3_moe(fields: Fields) -> list[LayerSpec]:
    mixer = attention(fields, qk_norm="head", bias="attention_bias")
    mlp = experts(fields, "num_experts" if "num_experts" in fields else "num_local_experts", router=router(fields))
    return [LayerSpec(mixer, one) for one in mlps(fields, mlp)]


def router(fields: Fields) -> Router:
    return Router(renormalize=fields.flag("norm_topk_prob"))


def mlps(fields: Fields, mlp: MoE) -> list[Mlp]:
    """Return each layer's MLP: experts in every `decoder_sparse_step`-th that `mlp_only_layers` does not name."""
    plain, step = fields.layer_numbers("mlp_only_layers") or frozenset(), fields.size("decoder_sparse_step", 1)
    sparse = [index not in plain and (index + 1) % step == 0 for index in range(fields.layers)]
    other: Mlp = mlp if all(sparse) else dense(fields)
    return [mlp if with_experts else other for with_experts in sparse]


QWEN2_MOE = Family(
    name="qwen2_moe",
    architectures=("Qwen2MoeForCausalLM",),
    model_types=("qwen2_moe",),
    layers=qwen2_moe,
    understands=EXPERTS,
    defaults={**_DEFAULTS, "qkv_bias": True, "num_key_value_heads": 16, "shared_expert_intermediate_size": 5632},
    runs=True,
)
QWEN3_MOE = Family(
    name="qwen3_moe",
    architectures=("Qwen3MoeForCausalLM",),
    model_types=("qwen3_moe",),
    layers=qwen3_moe,
    understands=EXPERTS,
    defaults={**_DEFAULTS, "num_key_value_heads": 4},
    runs=True,
)
