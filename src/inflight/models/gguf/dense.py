"""Read settings of dense architectures that GGUF files spell in their own way, or that only llama.cpp's code has.

Each function returns fields of config.json (Gemma's scale of attention, SmolLM3's layers without rotation). `config`
reads what all files have alike, `mixtures` mixtures of experts.
"""

from __future__ import annotations

from collections.abc import Mapping

from inflight.models.errors import ModelError
from inflight.models.gguf.keys import FULL, Config, Keys, layer_types
from inflight.models.gguf.rope import rope_of


def nothing(keys: Keys) -> Config:
    return {}


def llama(keys: Keys) -> Config:
    """Llama, Mistral and what is shaped like them."""
    inputs, outputs = keys.has("blk.0.attn_q.bias"), keys.has("blk.0.attn_output.bias")
    if inputs != outputs:
        raise ModelError(f"{keys.model.path} has biases of only some projections of attention, which Llama has not.")
    return {"attention_bias": inputs, "mlp_bias": keys.has("blk.0.ffn_up.bias")}


def biased(keys: Keys) -> Config:
    """Return the setting of families whose queries, keys and values may have biases."""
    return {"attention_bias": keys.has("blk.0.attn_q.bias")}


def gemma(keys: Keys) -> Config:
    return {"hidden_activation": "gelu_pytorch_tanh", "hidden_act": "gelu_pytorch_tanh"}


def gemma2(keys: Keys) -> Config:
    """Derive the scale of attention, which no key gives: head size; of the largest models, hidden size by heads."""
    largest = {"gemma2": 46, "gemma3": 62}[keys.architecture] == keys.layers
    scale = keys.size("embedding_length") // keys.one("attention.head_count") if largest else keys.head_dim
    return {
        **gemma(keys),
        "query_pre_attn_scalar": scale,
        "attn_logit_softcapping": keys.number("attn_logit_softcapping"),
        "final_logit_softcapping": keys.number("final_logit_softcapping"),
        "sliding_window": keys.find("attention.sliding_window"),
        "layer_types": layer_types(keys, 2 if keys.architecture == "gemma2" else 6),
    }


def gemma3(keys: Keys) -> Config:
    """Layers with a window rotate by a base of their own, unscaled."""
    return {**gemma2(keys), "rope_local_base_freq": keys.number("rope.freq_base_swa") or 10_000.0}


def phi3(keys: Keys) -> Config:
    original = keys.find("rope.scaling.original_context_length")
    return {
        "sliding_window": keys.find("attention.sliding_window") or None,
        "original_max_position_embeddings": keys.size("context_length") if original is None else original,
    }


def smollm3(keys: Keys) -> Config:
    """Every fourth layer does not rotate, which is in no key."""
    return {**llama(keys), "no_rope_layers": [int((layer + 1) % 4 != 0) for layer in range(keys.layers)]}


def olmo2(keys: Keys) -> Config:
    """OLMo 3 is the same architecture with windows."""
    window = keys.find("attention.sliding_window")
    if not window:
        return {}
    types = layer_types(keys, 4)
    return {"architectures": ["Olmo3ForCausalLM"], "sliding_window": window, "layer_types": types}


def granite(keys: Keys) -> Config:
    return {
        **llama(keys),
        "embedding_multiplier": keys.number("embedding_scale") or 1.0,
        "residual_multiplier": keys.number("residual_scale") or 1.0,
        "attention_multiplier": keys.number("attention.scale") or keys.head_dim**-0.5,
        "logits_scaling": keys.number("logit_scale") or 1.0,
    }


def lfm2(keys: Keys) -> Config:
    """Layers without heads of keys and values are convolutions."""
    full = [heads > 0 for heads in keys.by_layer("attention.head_count_kv")]
    return {
        "norm_eps": keys.number("attention.layer_norm_rms_epsilon"),
        "block_auto_adjust_ff_dim": False,
        "layer_types": [FULL if one else "conv" for one in full],
        "conv_L_cache": keys.size("shortconv.l_cache"),
        "conv_bias": any(name.endswith("shortconv.in_proj.bias") for name in keys.model.tensors),
    }


def qwen35(keys: Keys) -> Config:
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


def exaone4(keys: Keys) -> Config:
    """Where there is no window, all layers see all."""
    window = keys.find("attention.sliding_window") or None
    return {"sliding_window": window, "layer_types": layer_types(keys, 4) if window else [FULL] * keys.layers}


def apertus(keys: Keys) -> Config:
    """Without divisors of its frequencies it is not scaled, which config.json would be without a word. What its
    activation has learnt is in keys, too (`execution.checkpoints.gguf.names`)."""
    return {**llama(keys), "rope_parameters": None}


def ernie(keys: Keys) -> Config:
    return {"use_bias": keys.has("blk.0.attn_q.bias")}


def seed_oss(keys: Keys) -> Config:
    return {
        "attention_bias": keys.has("blk.0.attn_q.bias"),
        "attention_out_bias": keys.has("blk.0.attn_output.bias"),
        "mlp_bias": keys.has("blk.0.ffn_gate.bias"),
    }


def mistral3(keys: Keys) -> Config:
    """Ministral 3, whose queries grow with their position; without that, text of Mistral Small 3."""
    growth = keys.number("attention.temperature_scale")
    if not growth:
        return {**llama(keys), "architectures": ["LlamaForCausalLM"]}
    whole = keys.number("rope.scaling.yarn_log_multiplier")  # not a tenth of it, as elsewhere
    scaling = {**scaling_of(keys), "llama_4_scaling_beta": growth, "mscale": whole, "mscale_all_dim": whole}
    return {"sliding_window": None, "rope_scaling": scaling}


def cohere(keys: Keys) -> Config:
    return {
        **_layer_norms(keys),
        "logit_scale": keys.number("logit_scale"),
        "use_qk_norm": keys.has("blk.0.attn_q_norm.weight"),
        "attention_bias": keys.has("blk.0.attn_q.bias"),
    }


def cohere2(keys: Keys) -> Config:
    windows = {"sliding_window": keys.find("attention.sliding_window"), "layer_types": layer_types(keys, 4)}
    return {**cohere(keys), **windows}


def phi2(keys: Keys) -> Config:
    return _layer_norms(keys)


def nemotron(keys: Keys) -> Config:
    return {**llama(keys), "norm_eps": keys.number("attention.layer_norm_epsilon")}


def starcoder2(keys: Keys) -> Config:
    """Read StarCoder 2. The converter leaves out the published models' window, and llama.cpp does, too."""
    return {
        "use_bias": keys.has("blk.0.attn_q.bias"),
        "norm_epsilon": keys.number("attention.layer_norm_epsilon"),
        "sliding_window": keys.find("attention.sliding_window"),
    }


def _layer_norms(keys: Keys) -> Config:
    return {"layer_norm_eps": keys.number("attention.layer_norm_epsilon")}


def scaling_of(keys: Keys) -> Config:
    """`rope_scaling`, empty where there is none."""
    found = rope_of(keys).get("rope_scaling")
    return dict(found) if isinstance(found, Mapping) else {}
