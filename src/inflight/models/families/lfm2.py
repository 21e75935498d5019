"""LFM2: gated short convolutions, attention with normed queries and keys in some layers."""

from __future__ import annotations

from inflight.models.family import FULL, Family, attention
from inflight.models.fields import Fields
from inflight.models.spec import Dense, LayerSpec, ShortConvolution


def layers(fields: Fields) -> list[LayerSpec]:
    full = attention(fields, qk_norm="head")
    convolution = ShortConvolution(kernel=fields.size("conv_L_cache"), bias=fields.flag("conv_bias"))
    mlp = Dense(width=_width(fields), activation="silu")
    types, named = fields.layer_types((FULL, "conv")), fields.layer_numbers("full_attn_idxs")
    is_full = [types[index] == FULL if types else named is None or index in named for index in range(fields.layers)]
    return [LayerSpec(full if one else convolution, mlp) for one in is_full]


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


FAMILY = Family(
    name="lfm2",
    architectures=("Lfm2ForCausalLM",),
    model_types=("lfm2",),
    layers=layers,
    understands=frozenset(("conv_L_cache",)),
    defaults={
        "num_key_value_heads": 8,
        "conv_L_cache": 3,
        "block_auto_adjust_ff_dim": True,
        "block_multiple_of": 256,
        "max_position_embeddings": 128_000,
        "tie_word_embeddings": True,
        "rope_theta": 1e6,
    },
    runs=True,
    eps="norm_eps",
    names={
        "input_layernorm": "operator_norm",
        "post_attention_layernorm": "ffn_norm",
        "self_attn.o_proj": "self_attn.out_proj",
        "self_attn.q_norm": "self_attn.q_layernorm",
        "self_attn.k_norm": "self_attn.k_layernorm",
        "mlp.gate_proj": "feed_forward.w1",
        "mlp.up_proj": "feed_forward.w3",
        "mlp.down_proj": "feed_forward.w2",
        "model.norm": "model.embedding_norm",
    },
)
