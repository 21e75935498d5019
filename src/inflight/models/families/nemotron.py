"""Nemotron, dense: layer norms whose weights are stored less 1, a plain MLP with squared ReLU, a partial rotation."""

from __future__ import annotations

from inflight.models.family import Family, attention, dense
from inflight.models.fields import Fields
from inflight.models.spec import LayerSpec


def layers(fields: Fields) -> list[LayerSpec]:
    bias = fields.flag("attention_bias")
    mlp = dense(fields, gated=False, bias=fields.flag("mlp_bias"))
    return [LayerSpec(attention(fields, qkv_bias=bias, output_bias=bias), mlp)] * fields.layers


FAMILY = Family(
    name="nemotron",
    architectures=("NemotronForCausalLM",),
    model_types=("nemotron",),
    layers=layers,
    defaults={"hidden_act": "relu2", "max_position_embeddings": 4096},
    norm="layer",
    norm_offset=True,
    eps="norm_eps",
)
