"""Hunyuan: Llama's layers with norms of each head's queries and keys behind the rotation, whose base may be stretched
by a fixed number; dense, or with experts beside a shared one in every layer."""

from __future__ import annotations

from inflight.json_file import shown
from inflight.models.errors import ModelError
from inflight.models.family import Family, attention, dense, experts, rope
from inflight.models.fields import Fields
from inflight.models.mixers.attention import Attention
from inflight.models.mlps.moe import Router
from inflight.models.rope import RopeSettings
from inflight.models.spec import LayerSpec


def hunyuan_moe(fields: Fields) -> LayerSpec:
    """Experts, and the one that all tokens pass, are as wide as `intermediate_size` says."""
    picked = Fields({**fields.data, "moe_topk": _top_k(fields)}, {})
    sparse = experts(
        picked,
        "num_experts",
        top_k="moe_topk",
        width="intermediate_size",
        router=Router(renormalize=True),
        shared_width=fields.size("intermediate_size"),
    )
    return LayerSpec(_attention(fields), sparse)


def _top_k(fields: Fields) -> object:
    """Return `moe_topk`, which is given once, or as a list of equal values. Raises ModelError where layers differ."""
    value = fields.raw("moe_topk")
    if not isinstance(value, list) or not value:
        return value
    if any(one != value[0] for one in value):
        raise ModelError(
            f"moe_topk in config.json differs from layer to layer ({shown(value)}), which is not computed."
        )
    return value[0]


def _attention(fields: Fields) -> Attention:
    return attention(fields, qk_norm="head", qk_norm_last=True, bias="attention_bias")


def _rope(fields: Fields, mixer: Attention, layer: int) -> RopeSettings:
    """Read the rotation; `dynamic` with an `alpha` means NTK's stretched base here, at any length."""
    given = fields.raw("rope_scaling") or fields.raw("rope_parameters")
    if not (
        isinstance(given, dict) and given.get("alpha") and "dynamic" in (given.get("rope_type"), given.get("type"))
    ):
        return rope(fields, mixer)
    numbers = Fields({"rope_theta": fields.raw("rope_theta"), **given}, {})
    stretch = numbers.number("alpha") ** (mixer.head_dim / max(mixer.head_dim - 2, 1))
    plain = {"rope_type": "default", "rope_theta": numbers.number("rope_theta", 1e4) * stretch}
    return rope(Fields({**fields.data, "rope_scaling": None, "rope_parameters": plain}, {}), mixer)


_NAMES = {"self_attn.q_norm": "self_attn.query_layernorm", "self_attn.k_norm": "self_attn.key_layernorm"}
_DEFAULTS = {"rms_norm_eps": 1e-5, "max_position_embeddings": 2048}
FAMILY = Family(
    name="hunyuan_v1_dense",
    architectures=("HunYuanDenseV1ForCausalLM",),
    model_types=("hunyuan_v1_dense",),
    layers=lambda fields: LayerSpec(_attention(fields), dense(fields)),
    defaults=_DEFAULTS,
    runs=True,
    rope=_rope,
    names=_NAMES,
)
MOE = Family(
    name="hunyuan_v1_moe",
    architectures=("HunYuanMoEV1ForCausalLM",),
    model_types=("hunyuan_v1_moe",),
    layers=hunyuan_moe,
    understands=frozenset(("num_experts",)),
    defaults={**_DEFAULTS, "num_experts": 1, "moe_topk": 1},
    runs=True,
    rope=_rope,
    names={
        **_NAMES,
        "mlp.gate": "mlp.gate.wg",
        **{f"mlp.shared_experts.{one}_proj": f"mlp.shared_mlp.{one}_proj" for one in ("gate", "up", "down")},
    },
)
