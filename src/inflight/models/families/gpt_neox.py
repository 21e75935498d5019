"""GPT-NeoX and Pythia: layer norms, a plain MLP, as many KV heads as query heads, biases, a partial rotation."""

from __future__ import annotations

from inflight.models.family import Family, attention, dense
from inflight.models.fields import Fields
from inflight.models.spec import LayerSpec


def layers(fields: Fields) -> list[LayerSpec]:
    bias = fields.flag("attention_bias")
    mixer = attention(fields, qkv_bias=bias, output_bias=bias)
    return [LayerSpec(mixer, dense(fields, gated=False, bias=True))] * fields.layers


FAMILY = Family(
    name="gpt_neox",
    architectures=("GPTNeoXForCausalLM",),
    model_types=("gpt_neox",),
    layers=layers,
    defaults={"hidden_act": "gelu", "attention_bias": True, "max_position_embeddings": 2048},
    norm="layer",
    eps="layer_norm_eps",
)
