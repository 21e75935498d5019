"""ERNIE 4.5: Llama's layers; with experts, in a range of layers, beside shared ones or none."""

from __future__ import annotations

from inflight.models.family import Family, attention, dense, experts, rotation
from inflight.models.fields import Fields
from inflight.models.mlps.moe import Router
from inflight.models.spec import LayerSpec

_DEFAULTS = {
    "num_key_value_heads": 4,
    "rms_norm_eps": 1e-5,
    "rope_theta": 5e5,
    "max_position_embeddings": 131_072,
    "tie_word_embeddings": True,
}


def ernie_moe(fields: Fields) -> list[LayerSpec]:
    mixer, plain = attention(fields), dense(fields)
    sparse = experts(
        fields,
        "moe_num_experts",
        top_k="moe_k",
        router=Router(renormalize=True, correction=True),
        shared_width=fields.count("moe_num_shared_experts") * fields.size("moe_intermediate_size"),
    )
    first, last, step = fields.count("moe_layer_start_index"), _last(fields), fields.size("moe_layer_interval", 1)
    return [
        LayerSpec(mixer, sparse if first <= index <= last and (index + 1) % step == 0 else plain)
        for index in range(fields.layers)
    ]


def _last(fields: Fields) -> int:
    """Return the index of the last layer with experts; -1 in config.json stands for the model's last layer."""
    end = fields.raw("moe_layer_end_index")
    return fields.layers - 1 if end in (None, -1) else fields.size("moe_layer_end_index", least=0)


ERNIE = Family(
    name="ernie4_5",
    architectures=("Ernie4_5ForCausalLM", "Ernie4_5_ForCausalLM"),
    model_types=("ernie4_5",),
    layers=lambda fields: LayerSpec(attention(fields, bias="use_bias"), dense(fields, bias=fields.flag("use_bias"))),
    understands=frozenset(("use_bias",)),
    defaults={**_DEFAULTS, "num_key_value_heads": 2, "head_dim": 128},
    runs=True,
    rope=rotation(interleaved=True),
)
ERNIE_MOE = Family(
    name="ernie4_5_moe",
    architectures=("Ernie4_5_MoeForCausalLM",),
    model_types=("ernie4_5_moe",),
    layers=ernie_moe,
    understands=frozenset(("moe_num_experts",)),
    defaults={**_DEFAULTS, "moe_k": 6, "moe_num_shared_experts": 2, "moe_layer_start_index": 1},
    runs=True,
    rope=rotation(interleaved=True),
)
