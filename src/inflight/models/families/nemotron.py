"""Nemotron, dense: layer norms whose weights are stored less 1, a plain MLP with squared ReLU, a partial rotation."""

from __future__ import annotations

from inflight.models.family import Family, attention, dense, rotation
from inflight.models.spec import LayerSpec

FAMILY = Family(
    name="nemotron",
    architectures=("NemotronForCausalLM",),
    model_types=("nemotron",),
    layers=lambda fields: LayerSpec(
        attention(fields, bias="attention_bias"), dense(fields, gated=False, bias=fields.flag("mlp_bias"))
    ),
    defaults={
        "hidden_act": "relu2",
        "norm_eps": 1e-5,
        "partial_rotary_factor": 0.5,
        "max_position_embeddings": 4096,
    },
    runs=True,
    norm="layer",
    norm_offset=True,
    eps="norm_eps",
    rope=rotation(partial=True),
)
