"""Map names that Hugging Face gives tensors to those of GGUF files, and to what llama.cpp's converter did to each."""

from __future__ import annotations

import re
from collections.abc import Container
from typing import Literal

from msgspec import Struct

Undo = Literal["rotated pairs", "added one", "log of negated", "value heads", "value columns", "separate", "none"]


class StoredTensor(Struct, frozen=True):
    """name: in the file. expert: which of a stack, None where it is none. half: of an expert's rows, where gate and up
    are one tensor: 0, 1, or None where all are wanted. undo: what the converter did.

    rotated pairs: rows of each head as the kernels of llama.cpp rotate them, neighbours in pairs, where Hugging Face
    has halves. added one: a norm's weight, stored as 1 + w. value heads, value columns: heads of values dealt out one
    to each key head in turn, where Hugging Face has those of a key head together. separate: keys and values of latent
    attention in two tensors, keys turned; `name` is that of the keys, `attn_k_b`, beside which lies `attn_v_b`.
    """

    name: str
    expert: int | None = None
    undo: Undo = "none"
    half: int | None = None


# Converted by Llama's class, with its queries and keys moved.
_PAIRED = frozenset(("llama", "smollm3", "granite", "granitemoe", "arcee", "mistral3"))
_ADDED_ONE = frozenset(("gemma", "gemma2", "gemma3", "qwen3next", "qwen35", "qwen35moe", "nemotron"))
# Where the norm before the MLP bears the name of one after attention.
_POST_ATTENTION = frozenset(
    {"gemma2", "gemma3", "gemma4", "olmo2", "gpt-oss", "glm4moe", "qwen3next", "qwen35", "qwen35moe"}
    | {"exaone4", "seed_oss"}
)
_TOP = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "model.embedding_norm": "token_embd_norm",
    "model.final_layernorm": "output_norm",
    "lm_head": "output",
    "model.embed_tokens_per_layer": "per_layer_token_embd",
    "model.per_layer_model_projection": "per_layer_model_proj",
    "model.per_layer_projection_norm": "per_layer_proj_norm",
}
# GGUF's names of a layer's tensors, and what Hugging Face calls each.
_LEAVES = {
    name: leaf
    for leaf, names in {
        "attn_norm": "input_layernorm attention_layernorm operator_norm",
        "ffn_norm": "post_attention_layernorm pre_feedforward_layernorm feedforward_layernorm ffn_norm",
        "post_ffw_norm": "post_feedforward_layernorm post_mlp_layernorm",
        "post_attention_norm": "post_self_attn_layernorm",
        "attn_q": "self_attn.q_proj",
        "attn_k": "self_attn.k_proj",
        "attn_v": "self_attn.v_proj",
        "attn_output": "self_attn.o_proj self_attn.dense self_attn.out_proj",
        "attn_qkv": "self_attn.qkv_proj linear_attn.in_proj_qkv",
        "attn_q_norm": "self_attn.q_norm self_attn.query_layernorm self_attn.q_layernorm",
        "attn_k_norm": "self_attn.k_norm self_attn.key_layernorm self_attn.k_layernorm",
        "attn_q_a": "self_attn.q_a_proj",
        "attn_q_b": "self_attn.q_b_proj",
        "attn_q_a_norm": "self_attn.q_a_layernorm",
        "attn_kv_a_mqa": "self_attn.kv_a_proj_with_mqa",
        "attn_kv_a_norm": "self_attn.kv_a_layernorm",
        "attn_kv_b": "self_attn.kv_b_proj",
        "ffn_gate": "mlp.gate_proj feed_forward.w1",
        "ffn_up": "mlp.up_proj mlp.gate_up_proj mlp.fc1 mlp.c_fc feed_forward.w3",
        "ffn_down": "mlp.down_proj mlp.fc2 mlp.c_proj feed_forward.w2",
        "ffn_gate_inp": "mlp.gate mlp.gate.wg mlp.router block_sparse_moe.gate block_sparse_moe.router.layer "
        "feed_forward.gate router.proj",
        "ffn_gate_inp_shexp": "mlp.shared_expert_gate",
        "ffn_down_shexp": "shared_mlp.output_linear",
        "attn_gate": "linear_attn.in_proj_z",
        "ssm_in": "linear_attn.in_proj_qkvz",
        "ssm_ba": "linear_attn.in_proj_ba",
        "ssm_alpha": "linear_attn.in_proj_a",
        "ssm_beta": "linear_attn.in_proj_b",
        "ssm_conv1d": "linear_attn.conv1d",
        "ssm_norm": "linear_attn.norm",
        "ssm_out": "linear_attn.out_proj",
        "shortconv.in_proj": "conv.in_proj",
        "shortconv.out_proj": "conv.out_proj",
        "shortconv.conv": "conv.conv",
        "pre_ffw_norm_2": "pre_feedforward_layernorm_2",
        "post_ffw_norm_1": "post_feedforward_layernorm_1",
        "post_ffw_norm_2": "post_feedforward_layernorm_2",
        "inp_gate": "per_layer_input_gate",
        "proj": "per_layer_projection",
        "post_norm": "post_per_layer_input_norm",
    }.items()
    for name in names.split()
} | {
    f"mlp.{shared}.{part}_proj": f"ffn_{part}_shexp"
    for shared in ("shared_expert", "shared_experts", "shared_mlp")
    for part in ("gate", "up", "down")
}
# Whole names, which have no .weight or .bias in Hugging Face, or another one.
_WHOLE = {
    "self_attn.sinks": "attn_sinks.weight",
    "mlp.gate.e_score_correction_bias": "exp_probs_b.bias",
    "mlp.moe_statics.e_score_correction_bias": "exp_probs_b.bias",
    "feed_forward.expert_bias": "exp_probs_b.bias",
    "linear_attn.A_log": "ssm_a",
    "linear_attn.dt_bias": "ssm_dt.bias",
    "layer_scalar": "layer_output_scale.weight",
    "router.scale": "ffn_gate_inp.scale",
    "router.per_expert_scale": "ffn_down_exps.scale",
    "experts.gate_up_proj": "ffn_gate_up_exps.weight",
    "experts.down_proj": "ffn_down_exps.weight",
}
_EXPERT_PARTS = {"gate_proj": "gate", "up_proj": "up", "down_proj": "down", "w1": "gate", "w3": "up", "w2": "down"}
_LAYER = re.compile(r"model\.layers\.(?P<layer>\d+)\.(?P<rest>.+)")
_EXPERT = re.compile(
    r"(?:mlp|block_sparse_moe|feed_forward)\.experts\.(?P<expert>\d+)\.(?P<part>\w+)\.(?P<kind>weight|bias)"
)
_LEARNT = re.compile(r"model\.layers\.(?P<layer>\d+)\.mlp\.act_fn\.(?P<part>alpha_[pn])")
_VALUE_ROWS = frozenset(("ssm_a", "ssm_dt.bias", "ssm_alpha", "ssm_beta", "attn_gate", "attn_qkv", "ssm_conv1d"))


def stored_tensor(name: str, architecture: str, there: Container[str]) -> StoredTensor | None:
    """Find the tensor that Hugging Face calls `name`. there: the file's names. None where GGUF has no such tensor."""
    layer = _LAYER.fullmatch(name)
    if layer is None:
        stem, _, kind = name.rpartition(".")
        if stem not in _TOP:
            return None
        found = _TOP[stem]
        if found == "output_norm" and architecture in ("lfm2", "lfm2moe"):
            found = "token_embd_norm"
        return _found(f"{found}.{kind}", found, architecture)
    prefix, rest = f"blk.{layer['layer']}.", layer["rest"]
    expert = _EXPERT.fullmatch(rest)
    if expert is not None:
        return _expert(prefix, expert, there)
    if rest in _WHOLE:
        return _found(prefix + _WHOLE[rest], _WHOLE[rest], architecture)
    stem, _, kind = rest.rpartition(".")
    if stem not in _LEAVES:
        return None
    leaf = _LEAVES[stem]
    if stem == "post_attention_layernorm" and architecture in _POST_ATTENTION:
        leaf = "post_attention_norm"
    if leaf == "attn_kv_b" and f"{prefix}attn_k_b.{kind}" in there:
        return StoredTensor(f"{prefix}attn_k_b.{kind}", undo="separate")
    return _found(f"{prefix}{leaf}.{kind}", leaf, architecture)


def learnt_number(name: str) -> tuple[str, int] | None:
    """Return the metadata key of a number that xIELU has learnt, a list over all layers, and the layer's number."""
    found = _LEARNT.fullmatch(name)
    return None if found is None else (f"xielu.{found['part']}", int(found["layer"]))


def _expert(prefix: str, expert: re.Match[str], there: Container[str]) -> StoredTensor | None:
    part = _EXPERT_PARTS.get(expert["part"])
    if part is None:
        return None
    alone = f"{prefix}ffn_{part}.{expert['expert']}.{expert['kind']}"  # as the first converters had it
    if alone in there:
        return StoredTensor(alone)
    both = f"{prefix}ffn_gate_up_exps.{expert['kind']}"
    if part != "down" and both in there:
        return StoredTensor(both, int(expert["expert"]), half=int(part == "up"))
    return StoredTensor(f"{prefix}ffn_{part}_exps.{expert['kind']}", int(expert["expert"]))


def _found(name: str, leaf: str, architecture: str) -> StoredTensor:
    if leaf in ("attn_q", "attn_k") and architecture in _PAIRED:
        return StoredTensor(name, undo="rotated pairs")
    if architecture in _ADDED_ONE and name.endswith("norm.weight") and leaf != "ssm_norm":
        return StoredTensor(name, undo="added one")
    if architecture in ("qwen35", "qwen35moe"):
        if leaf == "ssm_a":
            return StoredTensor(name, undo="log of negated")
        if leaf in _VALUE_ROWS:
            return StoredTensor(name, undo="value heads")
        if leaf == "ssm_out":
            return StoredTensor(name, undo="value columns")
    elif leaf == "ssm_a":
        return StoredTensor(name, undo="log of negated")
    return StoredTensor(name)
