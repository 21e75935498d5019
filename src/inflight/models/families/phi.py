"""Phi: 1 and 2 compute attention and a plain MLP side by side, with one layer norm and biases everywhere; 3 and 4 are
Llama's layers with stacked projections and a partial rotation; 3.5-MoE has layer norms, biases of attention, and
experts that a sparse mixer picks."""

from __future__ import annotations

from inflight.models.errors import ModelError
from inflight.models.family import GATE_UP, QKV, Family, attention, dense, experts, rope, rotation
from inflight.models.fields import Fields
from inflight.models.mixers.attention import Attention
from inflight.models.mlps.moe import Router
from inflight.models.rope import RopeSettings
from inflight.models.spec import LayerSpec


def _rope(fields: Fields, mixer: Attention, layer: int) -> RopeSettings:
    """Read the rotation; early config.json files of Phi-3 say `su` or `yarn` for longrope."""
    scaling = fields.raw("rope_scaling")
    if isinstance(scaling, dict) and (scaling.get("rope_type") or scaling.get("type")) in ("su", "yarn"):
        fields = Fields({**fields.data, "rope_scaling": {**scaling, "rope_type": "longrope"}}, {})
    return rope(fields, mixer, partial=True)


def phi_moe(fields: Fields) -> LayerSpec:
    if fields.size("num_experts_per_tok") != 2:
        raise ModelError(
            f"num_experts_per_tok in config.json is {fields.size('num_experts_per_tok')}, but the sparse mixer of "
            "Phi-3.5-MoE picks 2 experts; take the config.json that belongs to the model."
        )
    router = Router(scores="sparsemixer", jitter=fields.small("router_jitter_noise", 0.01))
    mixer = attention(fields, window=fields.window, bias="attention_bias")
    return LayerSpec(mixer, experts(fields, "num_local_experts", width="intermediate_size", router=router))


PHI = Family(
    name="phi",
    architectures=("PhiForCausalLM",),
    model_types=("phi",),
    layers=lambda fields: LayerSpec(
        attention(fields, qkv_bias=True, output_bias=True), dense(fields, gated=False, bias=True), ("before mixer",)
    ),
    defaults={"hidden_act": "gelu_new", "max_position_embeddings": 2048, "partial_rotary_factor": 0.5},
    runs=True,
    norm="layer",
    eps="layer_norm_eps",
    head_bias=lambda fields: True,
    rope=rotation(partial=True),
    names={
        "self_attn.o_proj": "self_attn.dense",
        "mlp.up_proj": "mlp.fc1",
        "mlp.down_proj": "mlp.fc2",
        "model.norm": "model.final_layernorm",
    },
)
PHI3 = Family(
    name="phi3",
    architectures=("Phi3ForCausalLM",),
    model_types=("phi3",),
    layers=lambda fields: LayerSpec(attention(fields, window=fields.window), dense(fields)),
    defaults={"rms_norm_eps": 1e-5, "max_position_embeddings": 4096},
    runs=True,
    rope=_rope,
    names={**dict.fromkeys(QKV, "self_attn.qkv_proj"), **dict.fromkeys(GATE_UP, "mlp.gate_up_proj")},
)
PHI_MOE = Family(
    name="phimoe",
    architectures=("PhimoeForCausalLM", "PhiMoEForCausalLM"),
    model_types=("phimoe",),
    layers=phi_moe,
    understands=frozenset(("num_local_experts",)),
    defaults={
        "num_key_value_heads": 8,
        "num_local_experts": 16,
        "num_experts_per_tok": 2,
        "rms_norm_eps": 1e-5,
        "rope_theta": 1e6,
        "max_position_embeddings": 131_072,
    },
    runs=True,
    norm="layer",
    head_bias=lambda fields: fields.flag("lm_head_bias"),
)
