"""LFM2: gated short convolutions, attention with normed queries and keys in some layers; dense, or experts from some
layer on."""

from __future__ import annotations

from collections.abc import Sequence

from inflight.models.family import FULL, Family, attention, experts
from inflight.models.fields import Fields
from inflight.models.mixers.shortconv import ShortConvolution
from inflight.models.mlps.dense import Dense
from inflight.models.mlps.moe import Router
from inflight.models.parts import Mlp
from inflight.models.spec import LayerSpec


def dense(fields: Fields) -> list[LayerSpec]:
    return _layers(fields, [Dense(width=_width(fields), activation="silu")] * fields.layers)


def with_experts(fields: Fields) -> list[LayerSpec]:
    router = Router(
        scores="sigmoid",
        renormalize=fields.flag("norm_topk_prob"),
        sum_offset=1e-6,
        correction=fields.flag("use_expert_bias"),
        scale=fields.number("routed_scaling_factor"),
    )
    sparse = experts(fields, "num_experts", router=router, act="silu")
    plain, first = Dense(width=fields.size("intermediate_size"), activation="silu"), fields.count("num_dense_layers")
    return _layers(fields, [sparse if index >= first else plain for index in range(fields.layers)])


def _layers(fields: Fields, mlps: Sequence[Mlp]) -> list[LayerSpec]:
    full = attention(fields, qk_norm="head")
    convolution = ShortConvolution(kernel=fields.size("conv_L_cache", least=2), bias=fields.flag("conv_bias"))
    types, named = fields.layer_types((FULL, "conv")), fields.layer_numbers("full_attn_idxs")
    is_full = [types[index] == FULL if types else named is None or index in named for index in range(fields.layers)]
    return [LayerSpec(full if one else convolution, mlp) for one, mlp in zip(is_full, mlps, strict=True)]


def _width(fields: Fields) -> int:
    """Two thirds of what is given, times a factor, rounded up; as given where that is switched off."""
    width = fields.size("block_ff_dim") if "block_ff_dim" in fields else fields.size("intermediate_size")
    if not fields.flag("block_auto_adjust_ff_dim"):
        return width
    width, multiple = (
        int(fields.number("block_ffn_dim_multiplier") * int(2 * width / 3)),
        fields.size("block_multiple_of"),
    )
    return multiple * -(-width // multiple)


_NAMES = {
    "input_layernorm": "operator_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.o_proj": "self_attn.out_proj",
    "self_attn.q_norm": "self_attn.q_layernorm",
    "self_attn.k_norm": "self_attn.k_layernorm",
    "mlp.gate_proj": "feed_forward.w1",
    "mlp.up_proj": "feed_forward.w3",
    "mlp.down_proj": "feed_forward.w2",
    "model.norm": "model.embedding_norm",
}
_DEFAULTS = {
    "num_key_value_heads": 8,
    "conv_L_cache": 3,
    "max_position_embeddings": 128_000,
    "tie_word_embeddings": True,
    "rope_theta": 1e6,
}
FAMILY = Family(
    name="lfm2",
    architectures=("Lfm2ForCausalLM",),
    model_types=("lfm2",),
    layers=dense,
    understands=frozenset(("conv_L_cache",)),
    defaults={**_DEFAULTS, "block_auto_adjust_ff_dim": True, "block_multiple_of": 256},
    runs=True,
    eps="norm_eps",
    names=_NAMES,
)
MOE = Family(
    name="lfm2_moe",
    architectures=("Lfm2MoeForCausalLM",),
    model_types=("lfm2_moe",),
    layers=with_experts,
    understands=frozenset(("conv_L_cache", "num_experts")),
    defaults={**_DEFAULTS, "num_dense_layers": 2, "use_expert_bias": True, "norm_topk_prob": True},
    runs=True,
    eps="norm_eps",
    names=_NAMES,
)
