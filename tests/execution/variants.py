"""Small models of every family and rope variant, as arguments of their `transformers` configurations.

Knows sizes small enough to compute in a moment and odd enough to show each mistake: several layers, grouped heads,
windows shorter than the prompts, an original length well inside the maximum.
"""

from __future__ import annotations

from typing import Any

SIZES: dict[str, Any] = {
    "vocab_size": 320,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 160,
    "rms_norm_eps": 1e-3,
    "bos_token_id": 1,
    "eos_token_id": None,
}
_PHI3_LONG = {"rope_type": "longrope", "short_factor": [1.0, 1.1, 1.3, 2.0], "long_factor": [1.0, 1.5, 3.0, 6.0]}
_YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 40}
_LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
# Widths that fill no whole group of outputs.
_EXPERTS = {"num_experts": 7, "num_experts_per_tok": 3, "moe_intermediate_size": 20}

# Heads of values that fill no whole panel of 16.
_DELTA_NET = {
    "head_dim": 32,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 24,
    "linear_value_head_dim": 20,
}
_TWO_LINEAR = ["linear_attention", "linear_attention", "full_attention"]
_TWO_CONV = ["conv", "conv", "full_attention"]

_GEMMA4 = {
    "head_dim": 16,
    "sliding_window": 24,
    "layer_types": ["sliding_attention", "sliding_attention", "full_attention"],
    "hidden_size_per_layer_input": 0,
    "rope_parameters": {
        "full_attention": {"rope_type": "proportional", "partial_rotary_factor": 0.25, "rope_theta": 1e4},
        "sliding_attention": {"rope_type": "default", "rope_theta": 1e3},
    },
}
_ROUTED = {
    "n_routed_experts": 8,
    "num_experts_per_tok": 3,
    "n_shared_experts": 2,
    "moe_intermediate_size": 20,
    "n_group": 4,
    "topk_group": 2,
    "routed_scaling_factor": 1.5,
    "first_k_dense_replace": 1,
}
_LATENT = {
    **_ROUTED,
    "num_key_value_heads": 4,
    "kv_lora_rank": 32,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 20,
    "v_head_dim": 12,
}
_MSCALE = {**_YARN, "rope_theta": 1e4, "mscale": 0.707, "mscale_all_dim": 0.707}

# name → (class prefix in transformers, settings beside the sizes)
VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama2": ("Llama", {"num_key_value_heads": 4}),
    "llama31": ("Llama", {"rope_parameters": {**_LLAMA3, "rope_theta": 500_000.0}}),
    "llama32_tied": (
        "Llama",
        {"rope_parameters": {**_LLAMA3, "factor": 32.0, "rope_theta": 5e5}, "tie_word_embeddings": True},
    ),
    "llama_linear": ("Llama", {"rope_parameters": {"rope_type": "linear", "factor": 2.5, "rope_theta": 1e4}}),
    "llama_dynamic": ("Llama", {"rope_parameters": {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4}}),
    "llama_yarn": ("Llama", {"rope_parameters": {**_YARN, "rope_theta": 1e4}}),
    "llama_yarn_mscale": (
        "Llama",
        {
            "rope_parameters": {
                **_YARN,
                "rope_theta": 1e4,
                "mscale": 1.5,
                "mscale_all_dim": 0.7,
                "truncate": False,
                "beta_fast": 16.0,
                "beta_slow": 2.0,
            }
        },
    ),
    "llama_biases": ("Llama", {"attention_bias": True, "head_dim": 32}),
    "mistral_window": ("Mistral", {"sliding_window": 24, "head_dim": 32}),
    "mistral_full": (
        "Mistral",
        {"sliding_window": None, "rope_parameters": {"rope_type": "default", "rope_theta": 1e6}},
    ),
    "qwen2": ("Qwen2", {"num_attention_heads": 4, "num_key_value_heads": 1}),
    "qwen2_some_windows": ("Qwen2", {"use_sliding_window": True, "sliding_window": 20, "max_window_layers": 1}),
    "qwen25_tied_yarn": (
        "Qwen2",
        {
            "rope_parameters": {**_YARN, "attention_factor": 1.2, "rope_theta": 1e6},
            "tie_word_embeddings": True,
        },
    ),
    "qwen3_tied": ("Qwen3", {"head_dim": 32, "tie_word_embeddings": True}),
    "mixtral": ("Mixtral", {"num_local_experts": 5, "num_experts_per_tok": 2, "sliding_window": None}),
    "mixtral_window": ("Mixtral", {"num_local_experts": 3, "num_experts_per_tok": 1, "sliding_window": 24}),
    "qwen3_moe": ("Qwen3Moe", {**_EXPERTS, "head_dim": 32, "norm_topk_prob": True}),
    "qwen3_moe_some_dense": (
        "Qwen3Moe",
        {**_EXPERTS, "head_dim": 32, "mlp_only_layers": [1], "attention_bias": True, "tie_word_embeddings": True},
    ),
    "qwen2_moe": ("Qwen2Moe", {**_EXPERTS, "shared_expert_intermediate_size": 40}),
    "qwen2_moe_every_second": (
        "Qwen2Moe",
        {
            **_EXPERTS,
            "shared_expert_intermediate_size": 52,
            "decoder_sparse_step": 2,
            "norm_topk_prob": True,
            "hidden_act": "gelu_pytorch_tanh",
        },
    ),
    "glm4_moe": (
        "Glm4Moe",
        {
            **_ROUTED,
            "head_dim": 32,
            "use_qk_norm": True,
            "attention_bias": True,
            "rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5},
        },
    ),
    "deepseek_v2_lite": (
        "DeepseekV2",
        {**_LATENT, "q_lora_rank": None, "topk_method": "greedy", "rope_parameters": _MSCALE},
    ),
    "deepseek_v2": (
        "DeepseekV2",
        {**_LATENT, "q_lora_rank": 24, "topk_method": "group_limited_greedy", "attention_bias": True},
    ),
    "deepseek_v3": (
        "DeepseekV3",
        {
            **_LATENT,
            "q_lora_rank": 24,
            "kv_lora_rank": 48,
            "rope_parameters": {**_MSCALE, "mscale": 1.0, "mscale_all_dim": 1.0},
        },
    ),
    "deepseek_v3_halves": (
        "DeepseekV3",
        {**_LATENT, "q_lora_rank": None, "rope_interleave": False, "n_group": 1, "topk_group": 1},
    ),
    "olmoe": ("Olmoe", {"num_experts": 7, "num_experts_per_tok": 3, "norm_topk_prob": True}),
    "gpt_oss": (
        "GptOss",
        {
            "head_dim": 32,
            "num_local_experts": 5,
            "num_experts_per_tok": 2,
            "sliding_window": 24,
            "rope_parameters": {**_YARN, "rope_theta": 15e4, "truncate": False},
        },
    ),
    "qwen3_biases": ("Qwen3", {"head_dim": 32, "attention_bias": True}),
    "gemma": ("Gemma", {"head_dim": 24}),
    "gemma2": (
        "Gemma2",
        {
            "head_dim": 32,
            "sliding_window": 24,
            "query_pre_attn_scalar": 20,
            "attn_logit_softcapping": 2.0,
            "final_logit_softcapping": 3.0,
        },
    ),
    "gemma3": (
        "Gemma3Text",
        {
            "head_dim": 32,
            "sliding_window": 24,
            "layer_types": ["sliding_attention", "sliding_attention", "full_attention"],
            "rope_parameters": {
                "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
                "sliding_attention": {"rope_type": "default", "rope_theta": 1e3},
            },
        },
    ),
    "gemma4_31b": (
        "Gemma4Text",
        {
            **_GEMMA4,
            "global_head_dim": 32,
            "num_key_value_heads": 4,
            "num_global_key_value_heads": 2,
            "attention_k_eq_v": True,
            "final_logit_softcapping": 3.0,
        },
    ),
    "gemma4_e2b": (
        "Gemma4Text",
        {
            **_GEMMA4,
            "global_head_dim": 24,
            "num_key_value_heads": 1,
            "num_hidden_layers": 6,
            "layer_types": ["sliding_attention", "sliding_attention", "full_attention"] * 2,
            "num_kv_shared_layers": 3,
            "use_double_wide_mlp": True,
            "hidden_size_per_layer_input": 24,
            "vocab_size_per_layer_input": 330,
        },
    ),
    "gemma4_26b": (
        "Gemma4Text",
        {
            **_GEMMA4,
            "global_head_dim": 32,
            "num_global_key_value_heads": 1,
            "attention_k_eq_v": True,
            "enable_moe_block": True,
            "num_experts": 7,
            "top_k_experts": 3,
            "moe_intermediate_size": 20,
        },
    ),
    "phi3_window": ("Phi3", {"sliding_window": 24, "pad_token_id": 0}),
    "phi4_longrope": (
        "Phi3",
        {
            "num_attention_heads": 4,
            "rope_parameters": {**_PHI3_LONG, "partial_rotary_factor": 0.5, "rope_theta": 1e4},
            "original_max_position_embeddings": 32,
            "pad_token_id": 0,
        },
    ),
    "granite": (
        "Granite",
        {
            "embedding_multiplier": 3.0,
            "residual_multiplier": 0.22,
            "attention_multiplier": 0.1,
            "logits_scaling": 6.0,
            "attention_bias": True,
        },
    ),
    "smollm3": ("SmolLM3", {"no_rope_layers": [1, 0, 1], "pad_token_id": 0}),
    "olmo2": ("Olmo2", {}),
    "olmo3": (
        "Olmo3",
        {
            "sliding_window": 24,
            "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
            "rope_parameters": {
                "full_attention": {**_YARN, "rope_theta": 1e4},
                "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
            },
        },
    ),
    "glm4": ("Glm4", {"head_dim": 24, "partial_rotary_factor": 0.5, "pad_token_id": 0}),
    "seed_oss": ("SeedOss", {"head_dim": 32, "attention_bias": True, "attention_out_bias": True}),
    "ernie": ("Ernie4_5", {"head_dim": 32}),
    "cohere": ("Cohere", {"layer_norm_eps": 1e-3, "logit_scale": 0.25}),
    "cohere2": (
        "Cohere2",
        {
            "layer_norm_eps": 1e-3,
            "sliding_window": 24,
            "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
            "attention_bias": True,
        },
    ),
    "ministral": (
        "Ministral",
        {
            "head_dim": 16,
            "sliding_window": 24,
            "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
        },
    ),
    "ministral3": (
        "Ministral3",
        {"head_dim": 16, "rope_parameters": {**_YARN, "rope_theta": 1e4, "llama_4_scaling_beta": 0.5}},
    ),
    "ernie_moe": (
        "Ernie4_5_Moe",
        {"head_dim": 32, "moe_num_experts": 7, "moe_k": 3, "moe_intermediate_size": 20, "tie_word_embeddings": False},
    ),
    "ernie_moe_every_second": (
        "Ernie4_5_Moe",
        {
            "moe_num_experts": 5,
            "moe_k": 2,
            "moe_intermediate_size": 24,
            "moe_num_shared_experts": 0,
            "moe_layer_start_index": 0,
            "moe_layer_interval": 2,
        },
    ),
    "granitemoe": (
        "GraniteMoe",
        {
            "num_local_experts": 5,
            "num_experts_per_tok": 2,
            "embedding_multiplier": 3.0,
            "residual_multiplier": 0.22,
            "attention_multiplier": 0.1,
            "logits_scaling": 6.0,
            "attention_bias": True,
        },
    ),
    "granitemoe_shared": (
        "GraniteMoeShared",
        {
            "num_local_experts": 7,
            "num_experts_per_tok": 3,
            "shared_intermediate_size": 52,
            "residual_multiplier": 0.4,
            "attention_multiplier": 0.2,
            "tie_word_embeddings": True,
        },
    ),
    "exaone4": (
        "Exaone4",
        {
            "head_dim": 32,
            "sliding_window": 24,
            "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
        },
    ),
    "exaone4_no_windows": (
        "Exaone4",
        {
            "sliding_window": None,
            "sliding_window_pattern": None,
            "layer_types": ["full_attention"] * 3,
            "rope_parameters": {**_LLAMA3, "rope_theta": 1e6},
            "tie_word_embeddings": True,
        },
    ),
    "arcee": ("Arcee", {"rope_parameters": {**_YARN, "rope_theta": 1e4}, "mlp_bias": True, "attention_bias": True}),
    "apertus": ("Apertus", {"rope_parameters": {**_LLAMA3, "rope_theta": 12e6}, "attention_bias": True}),
    "hunyuan": (
        "HunYuanDenseV1",
        {"head_dim": 32, "rope_parameters": {"rope_type": "dynamic", "alpha": 50.0, "factor": 1.0, "rope_theta": 1e4}},
    ),
    "phi2": (
        "Phi",
        {
            "num_key_value_heads": 4,
            "layer_norm_eps": 1e-3,
            "rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5},
        },
    ),
    "nemotron": ("Nemotron", {"head_dim": 16, "norm_eps": 1e-3, "attention_bias": True, "mlp_bias": True}),
    "hunyuan_moe": (
        "HunYuanMoEV1",
        {"head_dim": 32, "num_experts": 7, "moe_topk": [3] * 3, "attention_bias": True, "tie_word_embeddings": True},
    ),
    # Near enough for several experts to be mixed, and not for all.
    "phi_moe": (
        "Phimoe",
        {
            "num_local_experts": 7,
            "router_jitter_noise": 0.4,
            "attention_bias": True,
            "lm_head_bias": True,
            "sliding_window": 24,
        },
    ),
    # Of equal factors, since the oracle takes the short ones for long texts, too.
    "phi_moe_longrope": (
        "Phimoe",
        {
            "num_local_experts": 5,
            "rope_parameters": {
                **_PHI3_LONG,
                "short_factor": [1.0, 1.5, 3.0, 6.0] * 2,
                "long_factor": [1.0, 1.5, 3.0, 6.0] * 2,
                "short_mscale": 1.3,
                "long_mscale": 1.3,
                "original_max_position_embeddings": 32,
                "rope_theta": 1e4,
            },
        },
    ),
    "starcoder2": ("Starcoder2", {"norm_epsilon": 1e-3, "sliding_window": 24}),
    "qwen35": ("Qwen3_5Text", {**_DELTA_NET, "num_hidden_layers": 4}),
    "qwen35_biases_tied": (
        "Qwen3_5Text",
        {
            **_DELTA_NET,
            "linear_num_key_heads": 3,
            "linear_num_value_heads": 3,
            "attention_bias": True,
            "tie_word_embeddings": True,
            "layer_types": ["full_attention", "linear_attention", "linear_attention"],
        },
    ),
    "qwen35_moe": (
        "Qwen3_5MoeText",
        {**_DELTA_NET, **_EXPERTS, "shared_expert_intermediate_size": 40, "layer_types": _TWO_LINEAR},
    ),
    "qwen3_next": (
        "Qwen3Next",
        {
            **_DELTA_NET,
            **_EXPERTS,
            "shared_expert_intermediate_size": 40,
            "mlp_only_layers": [1],
            "linear_num_value_heads": 6,
            "layer_types": _TWO_LINEAR,
        },
    ),
    "lfm2": ("Lfm2", {"norm_eps": 1e-3, "block_multiple_of": 16, "layer_types": _TWO_CONV, "pad_token_id": 0}),
    "lfm2_moe": (
        "Lfm2Moe",
        {
            **_EXPERTS,
            "norm_eps": 1e-3,
            "num_dense_layers": 1,
            "routed_scaling_factor": 1.5,
            "layer_types": _TWO_CONV,
            "pad_token_id": 0,
        },
    ),
    "lfm2_biases": (
        "Lfm2",
        {
            "norm_eps": 1e-3,
            "block_auto_adjust_ff_dim": False,
            "conv_bias": True,
            "conv_L_cache": 4,
            "tie_word_embeddings": False,
            "layer_types": ["full_attention", "conv", "conv"],
            "pad_token_id": 0,
        },
    ),
}


# The same of models that see images: of the text part, and of what sees.
_VISION = {
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "patch_size": 14,
}
WRAPPED: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "gemma3_images": (
        "Gemma3",
        {"model_type": "gemma3_text", "head_dim": 16, "sliding_window": 24},
        {**_VISION, "model_type": "siglip_vision_model", "image_size": 28},
    ),
    "gemma4_images": (
        "Gemma4",
        {"model_type": "gemma4_text", **_GEMMA4, "global_head_dim": 32, "pad_token_id": 0},
        {**_VISION, "model_type": "gemma4_vision", "num_key_value_heads": 2, "head_dim": 8},
    ),
    "mistral3": (
        "Mistral3",
        {"model_type": "mistral", "head_dim": 16, "sliding_window": None},
        {**_VISION, "model_type": "pixtral", "image_size": 28, "head_dim": 8},
    ),
    "qwen35_images": (
        "Qwen3_5",
        {
            **_DELTA_NET,
            "model_type": "qwen3_5_text",
            "layer_types": _TWO_LINEAR,
            "rope_parameters": {
                "rope_type": "default",
                "rope_theta": 1e4,
                "mrope_interleaved": True,
                "mrope_section": [2, 1, 1],
                "partial_rotary_factor": 0.25,
            },
        },
        {"depth": 1, "hidden_size": 32, "num_heads": 2, "intermediate_size": 32, "out_hidden_size": 64},
    ),
    "qwen2_vl": (
        "Qwen2VL",
        {
            "model_type": "qwen2_vl_text",
            "rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [2, 3, 3]},
        },
        {"depth": 1, "embed_dim": 32, "num_heads": 2, "hidden_size": 64, "patch_size": 14},
    ),
}


def settings_of(variant: str) -> tuple[str, dict[str, Any]]:
    """Class prefix and all configuration arguments of a variant."""
    if variant in WRAPPED:
        family, text, vision = WRAPPED[variant]
        return family, {"text_config": {**SIZES, **text}, "vision_config": vision}
    family, settings = VARIANTS[variant]
    return family, {**SIZES, **settings}
