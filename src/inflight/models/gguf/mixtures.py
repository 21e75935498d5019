"""Read settings of mixtures of experts that GGUF files spell in their own way, or that only llama.cpp's code has.

Each function returns fields of config.json: how experts are counted and picked. `dense` reads the rest where another
architecture has it, too.
"""

from __future__ import annotations

from inflight.models.gguf import dense
from inflight.models.gguf.keys import FULL, SLIDING, Config, Keys, by_kind, layer_types


def llama(keys: Keys) -> Config:
    """Llama; with experts it is Mixtral."""
    found = dense.llama(keys)
    return {**_picked(keys), "architectures": ["MixtralForCausalLM"]} if keys.find("expert_count") else found


def qwen2moe(keys: Keys) -> Config:
    shared = keys.model.shape("blk.0.ffn_up_shexp.weight")
    found = keys.find("expert_shared_feed_forward_length")
    return {
        **_experts(keys),
        "shared_expert_intermediate_size": found if found is not None else shared[0] if shared else 0,
        "norm_topk_prob": False,
    }


def qwen3moe(keys: Keys) -> Config:
    return {**_experts(keys), **dense.biased(keys), "norm_topk_prob": True}


def gpt_oss(keys: Keys) -> Config:
    found = _experts(keys, "num_local_experts")
    return {
        **found,
        "intermediate_size": found.pop("moe_intermediate_size"),
        "attention_bias": True,
        "sliding_window": keys.find("attention.sliding_window"),
        "layer_types": layer_types(keys, 2),
        "rope_scaling": {**scaling, "truncate": False} if (scaling := dense.scaling_of(keys)) else None,
    }


def glm4moe(keys: Keys) -> Config:
    return {
        **dense.biased(keys),
        **_experts(keys, "n_routed_experts"),
        **_routing(keys),
        "use_qk_norm": keys.has("blk.0.attn_q_norm.weight"),
    }


def deepseek2(keys: Keys) -> Config:
    """V2, and V3 where the router's scores are sigmoids. key_length is that of one head, or of the compressed form
    (then `key_length_mla` has the head's)."""
    sigmoid = keys.find("expert_gating_func") == 2
    rotated = keys.size("rope.dimension_count")
    keys_width = keys.find("attention.key_length_mla") or keys.size("attention.key_length")
    found: Config = {
        **_experts(keys, "n_routed_experts"),
        **_routing(keys),
        "architectures": ["DeepseekV3ForCausalLM" if sigmoid else "DeepseekV2ForCausalLM"],
        "kv_lora_rank": keys.size("attention.kv_lora_rank"),
        "q_lora_rank": keys.find("attention.q_lora_rank") or None,
        "qk_rope_head_dim": rotated,
        "qk_nope_head_dim": keys_width - rotated,
        "v_head_dim": keys.find("attention.value_length_mla") or keys.size("attention.value_length"),
        "head_dim": rotated,
        "num_key_value_heads": keys.one("attention.head_count"),
        "partial_rotary_factor": 1.0,
    }
    if sigmoid:
        return {**found, "scoring_func": "sigmoid", "topk_method": "noaux_tc"}
    in_groups = (keys.find("expert_group_count") or 1) > 1
    return {**found, "topk_method": "group_limited_greedy" if in_groups else "greedy"}


def qwen35moe(keys: Keys) -> Config:
    shared = keys.find("expert_shared_feed_forward_length") or 0
    return {**dense.qwen35(keys), **_experts(keys), "shared_expert_intermediate_size": shared, "norm_topk_prob": True}


def gemma4(keys: Keys) -> Config:
    """Its lists by layer as what two kinds of layers have. That keys are values, the file says by having none."""
    types, kinds = layer_types(keys, 6), by_kind(keys, "attention.head_count_kv")
    widths, shared = keys.by_layer("feed_forward_length"), keys.find("attention.shared_kv_layers") or 0
    inputs = keys.find("embedding_length_per_layer_input") or 0
    table = keys.model.shape("per_layer_token_embd.weight") if inputs else None
    full = types.index(FULL) if FULL in types else 0
    found: Config = {
        **dense.gemma(keys),
        "head_dim": keys.find("attention.key_length_swa") or keys.head_dim,
        "global_head_dim": keys.head_dim,
        "num_global_key_value_heads": kinds[FULL],
        "attention_k_eq_v": not keys.has(f"blk.{full}.attn_v.weight"),
        "layer_types": types,
        "sliding_window": keys.find("attention.sliding_window"),
        "final_logit_softcapping": keys.number("final_logit_softcapping"),
        "num_kv_shared_layers": shared,
        "use_double_wide_mlp": widths[-1] == 2 * widths[0],
        "hidden_size_per_layer_input": inputs,
        "vocab_size_per_layer_input": None if table is None else table[0],
        "rope_parameters": _rope_by_kind(keys),
    }
    if not keys.find("expert_count"):
        return found
    picked = {"enable_moe_block": True, "top_k_experts": keys.size("expert_used_count")}
    return {**found, **_experts(keys), **picked}


def _rope_by_kind(keys: Keys) -> Config:
    """Read rotation by kind. Full layers turn the share of pairs whose frequency is divided by 1 (others: by 10³⁰)."""
    factors = keys.model.floats("rope_freqs.weight")
    turned = 1.0 if factors is None else sum(one == 1 for one in factors) / len(factors)
    return {
        FULL: {
            "rope_type": "proportional",
            "partial_rotary_factor": turned,
            "rope_theta": keys.number("rope.freq_base") or 1e6,
        },
        SLIDING: {"rope_type": "default", "rope_theta": keys.number("rope.freq_base_swa") or 1e4},
    }


def granitemoe(keys: Keys) -> Config:
    """Its experts are as wide as `feed_forward_length` says."""
    shared = keys.find("expert_shared_feed_forward_length") or 0
    return {**dense.granite(keys), **_picked(keys), "shared_intermediate_size": shared}


def ernie_moe(keys: Keys) -> Config:
    """Read ERNIE 4.5. No key gives the last layer with experts: find it by the routers' tensors."""
    sparse = [layer for layer in range(keys.layers) if keys.has(f"blk.{layer}.ffn_gate_inp.weight")]
    return {
        "moe_num_experts": keys.size("expert_count"),
        "moe_k": keys.size("expert_used_count"),
        "moe_intermediate_size": _expert_width(keys),
        "moe_num_shared_experts": keys.find("expert_shared_count") or 0,
        "moe_layer_start_index": keys.find("leading_dense_block_count") or 0,
        "moe_layer_end_index": max(sparse, default=keys.layers - 1),
        "moe_layer_interval": keys.find("interleave_moe_layer_step") or 1,
    }


def hunyuan_moe(keys: Keys) -> Config:
    return {
        **dense.biased(keys),
        "num_experts": keys.size("expert_count"),
        "moe_topk": keys.size("expert_used_count"),
        "intermediate_size": _expert_width(keys),
    }


def phimoe(keys: Keys) -> Config:
    """Its norms are layer norms, whose eps the file has as that of RMS norms. How near experts must be to be mixed is
    in no key."""
    return {
        **dense.phi3(keys),
        **_picked(keys),
        "attention_bias": keys.has("blk.0.attn_q.bias"),
        "lm_head_bias": keys.has("output.bias"),
    }


def olmoe(keys: Keys) -> Config:
    return {"num_experts": keys.size("expert_count"), "num_experts_per_tok": keys.size("expert_used_count")}


def lfm2moe(keys: Keys) -> Config:
    return {
        **dense.lfm2(keys),
        **_experts(keys),
        "num_dense_layers": keys.find("leading_dense_block_count") or 0,
        "use_expert_bias": any(name.endswith("exp_probs_b.bias") for name in keys.model.tensors),
    }


def _routing(keys: Keys) -> Config:
    """Read routers that pick within groups, with shared experts and leading dense layers."""
    return {
        "n_shared_experts": keys.find("expert_shared_count") or 0,
        "first_k_dense_replace": keys.find("leading_dense_block_count") or 0,
        "routed_scaling_factor": keys.number("expert_weights_scale") or 1.0,
        "norm_topk_prob": bool(keys.flag("expert_weights_norm")),
        "n_group": keys.find("expert_group_count") or 1,
        "topk_group": keys.find("expert_group_used_count") or 1,
    }


def _experts(keys: Keys, count: str = "num_experts") -> Config:
    return {
        count: keys.size("expert_count"),
        "num_experts_per_tok": keys.size("expert_used_count"),
        "moe_intermediate_size": _expert_width(keys),
    }


def _expert_width(keys: Keys) -> int:
    found = keys.find("expert_feed_forward_length")
    shape = keys.model.shape(f"blk.{keys.layers - 1}.ffn_down_exps.weight")
    if found is None and shape is not None:  # files of the first converters
        return shape[-1]
    return keys.size("expert_feed_forward_length") if found is None else found


def _picked(keys: Keys) -> Config:
    """Read the counts of experts that are as wide as a dense MLP."""
    return {"num_local_experts": keys.size("expert_count"), "num_experts_per_tok": keys.size("expert_used_count")}
