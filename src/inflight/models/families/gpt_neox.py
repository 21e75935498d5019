"""GPT-NeoX and Pythia: layer norms, a plain MLP, as many KV heads as query heads, biases, a partial rotation."""

from __future__ import annotations

from inflight.models.family import Family, attention, dense
from inflight.models.spec import LayerSpec

FAMILY = Family(
    name="gpt_neox",
    architectures=("GPTNeoXForCausalLM",),
    model_types=("gpt_neox",),
    layers=lambda fields: LayerSpec(attention(fields, bias="attention_bias"), dense(fields, gated=False, bias=True)),
    defaults={"hidden_act": "gelu", "attention_bias": True, "max_position_embeddings": 2048},
    norm="layer",
    eps="layer_norm_eps",
)
