"""Jamba: Mamba layers with one of attention, without rotation, in each period; experts in every other layer."""

from __future__ import annotations

import math

from inflight.models.family import Family, attention, dense, experts
from inflight.models.fields import Fields
from inflight.models.mixers.mamba import Mamba
from inflight.models.spec import LayerSpec


def layers(fields: Fields) -> list[LayerSpec]:
    hidden = fields.size("hidden_size")
    full = attention(fields)
    mamba = Mamba(
        inner=fields.size("mamba_expand") * hidden,
        state=fields.size("mamba_d_state"),
        dt_rank=math.ceil(hidden / 16) if fields.raw("mamba_dt_rank") == "auto" else fields.size("mamba_dt_rank"),
        kernel=fields.size("mamba_d_conv"),
        conv_bias=fields.flag("mamba_conv_bias"),
        bias=fields.flag("mamba_proj_bias"),
        norms=True,
    )
    plain = dense(fields)
    sparse = experts(fields, "num_experts", width="intermediate_size") if fields.size("num_experts") > 1 else plain
    periods = fields.size("attn_layer_period"), fields.size("expert_layer_period")
    places = fields.count("attn_layer_offset"), fields.count("expert_layer_offset")
    return [
        LayerSpec(
            full if index % periods[0] == places[0] else mamba, sparse if index % periods[1] == places[1] else plain
        )
        for index in range(fields.layers)
    ]


FAMILY = Family(
    name="jamba",
    architectures=("JambaForCausalLM",),
    model_types=("jamba",),
    layers=layers,
    understands=frozenset(("num_experts", "mamba_d_state", "attn_layer_period")),
    defaults={
        "num_key_value_heads": 8,
        "num_experts": 16,
        "num_experts_per_tok": 2,
        "expert_layer_period": 2,
        "expert_layer_offset": 1,
        "attn_layer_period": 8,
        "attn_layer_offset": 4,
        "mamba_d_state": 16,
        "mamba_d_conv": 4,
        "mamba_expand": 2,
        "mamba_dt_rank": "auto",
        "mamba_conv_bias": True,
        "max_position_embeddings": 262_144,
    },
)
