"""What GGUF files of each architecture say in a way of their own, and what llama.cpp's code says instead of them.

Knows, by the name that a file gives its architecture, the class in config.json and its own settings (Gemma's scale of
attention, SmolLM3's layers without rotation). What all files have alike, `config` knows. A new architecture is a line
of the table at the end, and a function where it needs one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from inflight.json_file import shown
from inflight.models.errors import ModelError
from inflight.models.gguf.keys import Config, Keys
from inflight.models.gguf.rope import rope_of

SLIDING, _FULL = "sliding_attention", "full_attention"


def _llama(keys: Keys) -> Config:
    """Llama, Mistral and what is shaped like them; with experts it is Mixtral."""
    inputs, outputs = keys.has("blk.0.attn_q.bias"), keys.has("blk.0.attn_output.bias")
    if inputs != outputs:
        raise ModelError(f"{keys.model.path} has biases of only some projections of attention, which Llama has not.")
    found: Config = {"attention_bias": inputs, "mlp_bias": keys.has("blk.0.ffn_gate.bias")}
    if not keys.find("expert_count"):
        return found
    picked = {"num_local_experts": keys.size("expert_count"), "num_experts_per_tok": keys.size("expert_used_count")}
    return {**picked, "architectures": ["MixtralForCausalLM"]}


def _qwen3(keys: Keys) -> Config:
    return {"attention_bias": keys.has("blk.0.attn_q.bias")}


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


def _qwen2moe(keys: Keys) -> Config:
    shared = keys.model.shape("blk.0.ffn_up_shexp.weight")
    found = keys.find("expert_shared_feed_forward_length")
    return {
        **_experts(keys),
        "shared_expert_intermediate_size": found if found is not None else shared[0] if shared else 0,
        "norm_topk_prob": False,
    }


def _qwen3moe(keys: Keys) -> Config:
    return {**_experts(keys), **_qwen3(keys), "norm_topk_prob": True}


def _gemma(keys: Keys) -> Config:
    return {"hidden_activation": "gelu_pytorch_tanh", "hidden_act": "gelu_pytorch_tanh"}


def _gemma2(keys: Keys) -> Config:
    """The scale of attention is in no key: the head's size, but of the largest models hidden size by heads."""
    largest = {"gemma2": 46, "gemma3": 62}[keys.architecture] == keys.layers
    scale = keys.size("embedding_length") // keys.one("attention.head_count") if largest else keys.head_dim
    return {
        **_gemma(keys),
        "query_pre_attn_scalar": scale,
        "attn_logit_softcapping": keys.number("attn_logit_softcapping"),
        "final_logit_softcapping": keys.number("final_logit_softcapping"),
        "sliding_window": keys.find("attention.sliding_window"),
        "layer_types": _layer_types(keys, 2 if keys.architecture == "gemma2" else 6),
    }


def _gemma3(keys: Keys) -> Config:
    """Layers with a window rotate by a base of their own, unscaled."""
    return {**_gemma2(keys), "rope_local_base_freq": keys.number("rope.freq_base_swa") or 10_000.0}


def _gemma4(keys: Keys) -> Config:
    """Its lists by layer as what two kinds of layers have. That keys are values, the file says by having none."""
    types, kinds = _layer_types(keys, 6), by_kind(keys, "attention.head_count_kv")
    widths, shared = keys.by_layer("feed_forward_length"), keys.find("attention.shared_kv_layers") or 0
    inputs = keys.find("embedding_length_per_layer_input") or 0
    table = keys.model.shape("per_layer_token_embd.weight") if inputs else None
    full = types.index(_FULL) if _FULL in types else 0
    found: Config = {
        **_gemma(keys),
        "head_dim": keys.find("attention.key_length_swa") or keys.head_dim,
        "global_head_dim": keys.head_dim,
        "num_global_key_value_heads": kinds[_FULL],
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


def by_kind(keys: Keys, key: str) -> dict[str, int]:
    """Of layers with a window and of those that see all. Raises ModelError where layers of a kind differ."""
    values, types = keys.by_layer(key), _layer_types(keys, 6)
    found = {
        kind: {value for value, one in zip(values, types, strict=True) if one == kind} for kind in (SLIDING, _FULL)
    }
    if any(len(one) > 1 for one in found.values()):
        raise ModelError(
            f"{keys.architecture}.{key} in {keys.model.path} differs among layers of one kind ({shown(values)}), which "
            "this family is not known to do; take another model."
        )
    return {kind: next(iter(one), values[0]) for kind, one in found.items()}


def _rope_by_kind(keys: Keys) -> Config:
    """Of the whole head's pairs in layers that see all, those turn whose frequency is divided by 1, not by 10³⁰."""
    factors = keys.model.floats("rope_freqs.weight")
    turned = 1.0 if factors is None else sum(one == 1 for one in factors) / len(factors)
    return {
        _FULL: {
            "rope_type": "proportional",
            "partial_rotary_factor": turned,
            "rope_theta": keys.number("rope.freq_base") or 1e6,
        },
        SLIDING: {"rope_type": "default", "rope_theta": keys.number("rope.freq_base_swa") or 1e4},
    }


def _layer_types(keys: Keys, period: int) -> list[str]:
    """By the file's list, where it has one; else each `period`-th layer sees all."""
    name = f"{keys.architecture}.attention.sliding_window_pattern"
    if keys.model.metadata.is_array(name):
        windows = [bool(one) for one in keys.by_layer("attention.sliding_window_pattern")]
    else:
        period = keys.find("attention.sliding_window_pattern") or period
        windows = [(layer + 1) % period != 0 for layer in range(keys.layers)]
    return [SLIDING if one else _FULL for one in windows]


def _phi3(keys: Keys) -> Config:
    original = keys.find("rope.scaling.original_context_length")
    return {
        "sliding_window": keys.find("attention.sliding_window") or None,
        "original_max_position_embeddings": keys.size("context_length") if original is None else original,
    }


def _gpt_oss(keys: Keys) -> Config:
    found = _experts(keys, "num_local_experts")
    return {
        **found,
        "intermediate_size": found.pop("moe_intermediate_size"),
        "attention_bias": True,
        "sliding_window": keys.find("attention.sliding_window"),
        "layer_types": _layer_types(keys, 2),
        "rope_scaling": {**scaling, "truncate": False} if (scaling := _mapping(rope_of(keys))) else None,
    }


def _mapping(rope: Config) -> Config | None:
    found = rope.get("rope_scaling")
    return dict(found) if isinstance(found, Mapping) else None


def _smollm3(keys: Keys) -> Config:
    """Every fourth layer does not rotate, which is in no key."""
    return {**_llama(keys), "no_rope_layers": [int((layer + 1) % 4 != 0) for layer in range(keys.layers)]}


def _olmo2(keys: Keys) -> Config:
    """OLMo 3 is the same architecture with windows."""
    window = keys.find("attention.sliding_window")
    if not window:
        return {}
    types = _layer_types(keys, 4)
    return {"architectures": ["Olmo3ForCausalLM"], "sliding_window": window, "layer_types": types}


def _granite(keys: Keys) -> Config:
    return {
        **_llama(keys),
        "embedding_multiplier": keys.number("embedding_scale") or 1.0,
        "residual_multiplier": keys.number("residual_scale") or 1.0,
        "attention_multiplier": keys.number("attention.scale") or keys.head_dim**-0.5,
        "logits_scaling": keys.number("logit_scale") or 1.0,
    }


def _glm4(keys: Keys) -> Config:
    return {"attention_bias": keys.has("blk.0.attn_q.bias")}


def _glm4moe(keys: Keys) -> Config:
    return {
        **_glm4(keys),
        **_experts(keys, "n_routed_experts"),
        **_routing(keys),
        "use_qk_norm": keys.has("blk.0.attn_q_norm.weight"),
    }


def _routing(keys: Keys) -> Config:
    """Of routers that pick within groups, beside shared experts and behind dense layers."""
    return {
        "n_shared_experts": keys.find("expert_shared_count") or 0,
        "first_k_dense_replace": keys.find("leading_dense_block_count") or 0,
        "routed_scaling_factor": keys.number("expert_weights_scale") or 1.0,
        "norm_topk_prob": bool(keys.flag("expert_weights_norm")),
        "n_group": keys.find("expert_group_count") or 1,
        "topk_group": keys.find("expert_group_used_count") or 1,
    }


def _deepseek2(keys: Keys) -> Config:
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


def _lfm2(keys: Keys) -> Config:
    """Layers without heads of keys and values are convolutions."""
    full = [heads > 0 for heads in keys.by_layer("attention.head_count_kv")]
    return {
        "norm_eps": keys.number("attention.layer_norm_rms_epsilon"),
        "block_auto_adjust_ff_dim": False,
        "layer_types": [_FULL if one else "conv" for one in full],
        "conv_L_cache": keys.size("shortconv.l_cache"),
        "conv_bias": any(name.endswith("shortconv.in_proj.bias") for name in keys.model.tensors),
    }


def _qwen35(keys: Keys) -> Config:
    """Gated DeltaNet in all layers but each `full_attention_interval`-th. The rotation has sections for images, which
    texts leave equal."""
    heads = max(1, keys.size("ssm.time_step_rank"))
    return {
        "partial_rotary_factor": (keys.find("rope.dimension_count") or keys.head_dim) / max(1, keys.head_dim),
        "attention_bias": any(name.endswith("attn_q.bias") for name in keys.model.tensors),
        "full_attention_interval": keys.find("full_attention_interval") or 4,
        "linear_conv_kernel_dim": keys.size("ssm.conv_kernel"),
        "linear_key_head_dim": keys.size("ssm.state_size"),
        "linear_num_key_heads": keys.size("ssm.group_count"),
        "linear_num_value_heads": heads,
        "linear_value_head_dim": keys.size("ssm.inner_size") // heads,
    }


def _qwen35moe(keys: Keys) -> Config:
    shared = keys.find("expert_shared_feed_forward_length") or 0
    return {**_qwen35(keys), **_experts(keys), "shared_expert_intermediate_size": shared, "norm_topk_prob": True}


def _nothing(keys: Keys) -> Config:
    return {}


ARCHITECTURES: dict[str, tuple[str, Callable[[Keys], Config]]] = {
    "llama": ("LlamaForCausalLM", _llama),
    "qwen2": ("Qwen2ForCausalLM", _nothing),
    "qwen2moe": ("Qwen2MoeForCausalLM", _qwen2moe),
    "qwen3": ("Qwen3ForCausalLM", _qwen3),
    "qwen3moe": ("Qwen3MoeForCausalLM", _qwen3moe),
    "qwen3next": ("Qwen3NextForCausalLM", _qwen35moe),
    "qwen35": ("Qwen3_5ForCausalLM", _qwen35),
    "qwen35moe": ("Qwen3_5MoeForCausalLM", _qwen35moe),
    "gemma": ("GemmaForCausalLM", _gemma),
    "gemma2": ("Gemma2ForCausalLM", _gemma2),
    "gemma3": ("Gemma3ForCausalLM", _gemma3),
    "gemma4": ("Gemma4ForCausalLM", _gemma4),
    "phi3": ("Phi3ForCausalLM", _phi3),
    "gpt-oss": ("GptOssForCausalLM", _gpt_oss),
    "smollm3": ("SmolLM3ForCausalLM", _smollm3),
    "olmo2": ("Olmo2ForCausalLM", _olmo2),
    "granite": ("GraniteForCausalLM", _granite),
    "glm4": ("Glm4ForCausalLM", _glm4),
    "glm4moe": ("Glm4MoeForCausalLM", _glm4moe),
    "deepseek2": ("DeepseekV2ForCausalLM", _deepseek2),
    "lfm2": ("Lfm2ForCausalLM", _lfm2),
}
