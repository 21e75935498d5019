"""Granite: Llama's layers with four factors, on embeddings, residuals, scores and logits; or with experts in every
layer, beside a shared one or none."""

from __future__ import annotations

from inflight.models.family import Family, attention, dense, experts
from inflight.models.fields import Fields
from inflight.models.mlps.moe import Router
from inflight.models.spec import LayerSpec

_FACTORS = frozenset(("embedding_multiplier", "residual_multiplier", "attention_multiplier", "logits_scaling"))


def layers(fields: Fields) -> LayerSpec:
    mixer = attention(fields, bias="attention_bias", scale=fields.number("attention_multiplier"))
    return LayerSpec(mixer, dense(fields, bias=fields.flag("mlp_bias")))


def granite_moe(fields: Fields) -> LayerSpec:
    mixer = attention(fields, bias="attention_bias", scale=fields.number("attention_multiplier"))
    router, shared = Router(renormalize=True), fields.count("shared_intermediate_size")
    return LayerSpec(
        mixer, experts(fields, "num_local_experts", width="intermediate_size", router=router, shared_width=shared)
    )


GRANITE = Family(
    name="granite",
    architectures=("GraniteForCausalLM",),
    model_types=("granite",),
    layers=layers,
    understands=_FACTORS,
    defaults={"max_position_embeddings": 2048},
    runs=True,
    embedding_scale=lambda fields: fields.number("embedding_multiplier"),
    logit_scale=lambda fields: 1 / fields.number("logits_scaling"),
    residual_scale=lambda fields: fields.number("residual_multiplier"),
)
GRANITE_MOE = Family(
    name="granitemoe",
    architectures=("GraniteMoeForCausalLM", "GraniteMoeSharedForCausalLM"),
    model_types=("granitemoe", "granitemoeshared"),
    layers=granite_moe,
    understands=_FACTORS | {"num_local_experts"},
    defaults={"num_local_experts": 8, "num_experts_per_tok": 2, "max_position_embeddings": 2048},
    runs=True,
    embedding_scale=lambda fields: fields.number("embedding_multiplier"),
    logit_scale=lambda fields: 1 / fields.number("logits_scaling"),
    residual_scale=lambda fields: fields.number("residual_multiplier"),
    names={
        "mlp.shared_experts.gate_proj": "shared_mlp.input_linear",
        "mlp.shared_experts.up_proj": "shared_mlp.input_linear",
        "mlp.shared_experts.down_proj": "shared_mlp.output_linear",
    },
)
