"""OLMoE: Llama's layers with norms of queries and keys over all heads, and experts in every layer."""

from __future__ import annotations

from inflight.models.families.qwen_moe import router
from inflight.models.family import Family, attention, experts
from inflight.models.spec import LayerSpec

FAMILY = Family(
    name="olmoe",
    architectures=("OlmoeForCausalLM",),
    model_types=("olmoe",),
    layers=lambda fields: LayerSpec(
        attention(fields, qk_norm="all", bias="attention_bias"),
        experts(
            fields,
            "num_local_experts" if "num_local_experts" in fields else "num_experts",
            width="intermediate_size",
            router=router(fields),
        ),
    ),
    understands=frozenset(("num_experts", "num_local_experts")),
    defaults={"num_experts": 64, "num_experts_per_tok": 8, "max_position_embeddings": 4096, "rms_norm_eps": 1e-5},
    runs=True,
)
