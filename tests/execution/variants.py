"""Small models of every family and rope variant, as arguments of their `transformers` configurations.

Knows sizes small enough to compute in a moment and odd enough to tell mistakes apart: several layers, grouped heads,
windows shorter than the prompts, an original length well inside the maximum.
"""

from __future__ import annotations

from typing import Any

_SIZES: dict[str, Any] = {
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
        {**_EXPERTS, "shared_expert_intermediate_size": 52, "decoder_sparse_step": 2, "norm_topk_prob": True},
    ),
    "qwen3_biases": ("Qwen3", {"head_dim": 32, "attention_bias": True}),
}


def settings_of(variant: str) -> tuple[str, dict[str, Any]]:
    """Class prefix and all configuration arguments of a variant."""
    family, settings = VARIANTS[variant]
    return family, {**_SIZES, **settings}
