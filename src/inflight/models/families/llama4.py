"""Llama 4: attention in chunks, but every fourth layer without rotation over everything; experts with a shared one in
every n-th layer, between wider dense ones."""

from __future__ import annotations

from inflight.models.family import FULL, Family, attention, dense, experts
from inflight.models.fields import Fields
from inflight.models.mlps.moe import Router
from inflight.models.spec import LayerSpec

_CHUNKED = "chunked_attention"


def layers(fields: Fields) -> list[LayerSpec]:
    # Queries and keys are normed without weights, which leaves nothing to count or to hold.
    full = attention(fields, bias="attention_bias")
    local = attention(fields, window=fields.count("attention_chunk_size"), chunked=True, bias="attention_bias")
    plain = dense(fields, "intermediate_size_mlp")
    shared = fields.size("intermediate_size")
    router = Router(scores="sigmoid")
    sparse = experts(fields, "num_local_experts", width="intermediate_size", router=router, shared_width=shared)
    step, named = fields.size("interleave_moe_layer_step"), fields.layer_numbers("moe_layers")
    return [
        LayerSpec(
            local if is_local else full,
            sparse if (index in named if named is not None else (index + 1) % step == 0) else plain,
        )
        for index, is_local in enumerate(_local(fields))
    ]


def _local(fields: Fields) -> list[bool]:
    """Whether each layer attends in chunks: those that rotate, unless `layer_types` says otherwise."""
    types = fields.layer_types((FULL, _CHUNKED))
    if types is not None:
        return [kind == _CHUNKED for kind in types]
    rotates, every = fields.raw("no_rope_layers"), fields.size("no_rope_layer_interval")
    if isinstance(rotates, list) and len(rotates) == fields.layers:  # 1: the layer rotates
        return [bool(one) for one in rotates]
    return [(index + 1) % every != 0 for index in range(fields.layers)]


FAMILY = Family(
    name="llama4",
    architectures=("Llama4ForCausalLM",),
    model_types=("llama4", "llama4_text"),
    layers=layers,
    understands=frozenset(("attention_chunk_size", "no_rope_layers", "num_local_experts")),
    defaults={
        "num_key_value_heads": 8,
        "head_dim": 128,
        "intermediate_size_mlp": 16_384,
        "num_local_experts": 16,
        "num_experts_per_tok": 1,
        "interleave_moe_layer_step": 1,
        "no_rope_layer_interval": 4,
        "attention_chunk_size": 8192,
        "max_position_embeddings": 131_072,
    },
)
