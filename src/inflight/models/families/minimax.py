"""MiniMax-M2: queries and keys normed over all heads at once, experts with a bias of the router in every layer."""

from __future__ import annotations

from inflight.models.family import Family, attention, experts
from inflight.models.mlps.moe import Router
from inflight.models.spec import LayerSpec

FAMILY = Family(
    name="minimax_m2",
    architectures=("MiniMaxM2ForCausalLM",),
    model_types=("minimax_m2",),
    layers=lambda fields: LayerSpec(
        attention(fields, qk_norm="all" if fields.flag("use_qk_norm") else "none"),
        experts(
            fields,
            "num_local_experts",
            width="intermediate_size",
            router=Router(scores="sigmoid", renormalize=True, correction=True),
            shared_width=fields.count("shared_intermediate_size"),
        ),
    ),
    understands=frozenset(("num_local_experts",)),
    defaults={"num_key_value_heads": 8, "head_dim": 128, "use_qk_norm": True, "max_position_embeddings": 196_608},
)
