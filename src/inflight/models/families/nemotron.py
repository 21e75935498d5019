"""Nemotron, dense: layer norms whose weights are stored less 1, a plain MLP with squared ReLU, a partial rotation."""

from __future__ import annotations

from inflight.models.family import Family, attention, dense
from inflight.models.spec import LayerSpec

FAMILY = Family(
    name="nemotron",
    architectures=("NemotronForCausalLM",),
    model_types=("nemotron",),
    layers=lambda fields: LayerSpec(
        attention(fields, bias="attention_bias"), dense(fields, gated=False, bias=fields.flag("mlp_bias"))
    ),
    defaults={"hidden_act": "relu2", "max_position_embeddings": 4096},
    norm="layer",
    norm_offset=True,
    eps="norm_eps",
)
