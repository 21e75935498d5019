"""Hunyuan, dense: Llama's layers with norms of each head's queries and keys behind the rotation, whose base may be
stretched by a fixed number."""

from __future__ import annotations

from inflight.models.family import Family, attention, dense, rope
from inflight.models.fields import Fields
from inflight.models.rope import RopeSettings
from inflight.models.spec import Attention, LayerSpec


def _rope(fields: Fields, mixer: Attention, layer: int) -> RopeSettings:
    """What config.json calls `dynamic` is, with an `alpha`, NTK's stretched base, whatever the length."""
    given = fields.raw("rope_scaling") or fields.raw("rope_parameters")
    if not (
        isinstance(given, dict) and given.get("alpha") and "dynamic" in (given.get("rope_type"), given.get("type"))
    ):
        return rope(fields, mixer)
    numbers = Fields({"rope_theta": fields.raw("rope_theta"), **given}, {})
    stretch = numbers.number("alpha") ** (mixer.head_dim / max(mixer.head_dim - 2, 1))
    plain = {"rope_type": "default", "rope_theta": numbers.number("rope_theta", 1e4) * stretch}
    return rope(Fields({**fields.data, "rope_scaling": None, "rope_parameters": plain}, {}), mixer)


FAMILY = Family(
    name="hunyuan_v1_dense",
    architectures=("HunYuanDenseV1ForCausalLM",),
    model_types=("hunyuan_v1_dense",),
    layers=lambda fields: LayerSpec(
        attention(fields, qk_norm="head", qk_norm_last=True, bias="attention_bias"), dense(fields)
    ),
    defaults={"rms_norm_eps": 1e-5, "max_position_embeddings": 2048},
    runs=True,
    rope=_rope,
    names={"self_attn.q_norm": "self_attn.query_layernorm", "self_attn.k_norm": "self_attn.key_layernorm"},
)
