"""Tiny random checkpoints with a tokenizer and a chat template, written in a moment without torch.

Knows the names of the tensors of each family. What the models say is noise, but noise that depends on every token
before, so that a wrong block, position or row changes it.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file
from text.builders import byte_level

from inflight.execution.backends.reference import ReferenceBackend
from inflight.execution.weights import load_weights
from inflight.models.registry import read_spec

CHAT_TEMPLATE = (
    "{% for message in messages %}<|begin|>{{ message.role }}: {{ message.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}<|begin|>assistant: {% endif %}"
)
LLAMA_LIKE = ("llama", "mistral", "qwen2", "qwen3")
SIZES: dict[str, Any] = {
    "vocab_size": 384,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 256,
    "rms_norm_eps": 1e-5,
    "torch_dtype": "float32",
}
FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {"architectures": ["LlamaForCausalLM"], "tie_word_embeddings": True},
    "mistral": {"architectures": ["MistralForCausalLM"], "sliding_window": 40},
    "qwen2": {"architectures": ["Qwen2ForCausalLM"]},
    "qwen3": {"architectures": ["Qwen3ForCausalLM"], "tie_word_embeddings": True},
    "gemma2": {"architectures": ["Gemma2ForCausalLM"], "sliding_window": 40, "attn_logit_softcapping": 2.0},
    "phi3": {"architectures": ["Phi3ForCausalLM"], "partial_rotary_factor": 0.5},
    "granite": {"architectures": ["GraniteForCausalLM"], "residual_multiplier": 0.3, "attention_multiplier": 0.2},
    "deepseek_v3": {
        "architectures": ["DeepseekV3ForCausalLM"],
        "q_lora_rank": 24,
        "kv_lora_rank": 32,
        "qk_nope_head_dim": 16,
        "qk_rope_head_dim": 8,
        "v_head_dim": 12,
        "first_k_dense_replace": 1,
        "n_routed_experts": 8,
        "n_shared_experts": 1,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 24,
        "n_group": 2,
        "topk_group": 1,
    },
    "gemma4": {
        "architectures": ["Gemma4ForCausalLM"],
        "num_hidden_layers": 5,
        "layer_types": [*["sliding_attention"] * 2, "full_attention", "sliding_attention", "full_attention"],
        "sliding_window": 40,
        "global_head_dim": 32,
        "num_kv_shared_layers": 2,
        "hidden_size_per_layer_input": 16,
        "vocab_size_per_layer_input": 384,
    },
    "cohere2": {"architectures": ["Cohere2ForCausalLM"], "sliding_window": 40, "sliding_window_pattern": 2},
    "qwen3_5": {
        "architectures": ["Qwen3_5ForCausalLM"],
        "num_hidden_layers": 3,
        "layer_types": ["linear_attention", "full_attention", "linear_attention"],
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 4,
        "linear_key_head_dim": 16,
        "linear_value_head_dim": 16,
        "tie_word_embeddings": True,
    },
    "lfm2": {
        "architectures": ["Lfm2ForCausalLM"],
        "norm_eps": 1e-5,
        "block_multiple_of": 32,
        "layer_types": ["conv", "full_attention"],
    },
}


def write_model(folder: Path, family: str = "llama", **settings: Any) -> Path:
    """A complete model folder. `settings` go into config.json."""
    config = {**SIZES, **FAMILIES[family], **settings}
    config["model_type"] = config["architectures"][0].removesuffix("ForCausalLM").lower()
    folder.mkdir(parents=True, exist_ok=True)
    backend = byte_level()
    backend.save(str(folder / "tokenizer.json"))
    texts = {"bos_token": "<|begin|>", "eos_token": "<|end|>", "chat_template": CHAT_TEMPLATE}
    (folder / "tokenizer_config.json").write_text(json.dumps(texts), encoding="utf-8")
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": backend.token_to_id("<|end|>")}))
    (folder / "config.json").write_text(json.dumps(config))
    save_file(weights_of(config) if family in LLAMA_LIKE else asked_for(config), folder / "model.safetensors")
    return folder


class Inventor:
    """A source of tensors that makes up whatever it is asked for, and keeps it."""

    def __init__(self, less: float) -> None:
        self.made: dict[str, np.ndarray] = {}
        self._less, self._random = less, np.random.default_rng(5)

    def __contains__(self, name: str) -> bool:
        return name != "lm_head.weight"

    def tensor(self, name: str, shape: Sequence[int]) -> np.ndarray:
        if name not in self.made:
            scale = 0.5 if "embed" in name else 0.2
            is_norm = "norm" in name.lower() or name.endswith("scalar")
            made = (
                self._random.uniform(0.5, 1.5, shape) - self._less if is_norm else self._random.standard_normal(shape)
            )
            self.made[name] = (made if is_norm else made * scale).astype(np.float32)
        return self.made[name]

    def matrix(self, name: str, shape: tuple[int, int]) -> np.ndarray:
        return self.tensor(name, shape)

    def pieces(self, name: str, shape: tuple[int, int]) -> list[np.ndarray]:
        return [self.tensor(name, shape)]

    def release(self, name: str) -> None:
        """All is kept."""


def asked_for(config: dict[str, Any]) -> dict[str, np.ndarray]:
    """Random tensors of whatever names and shapes loading such a model asks for."""
    inventor = Inventor(less=1 if config["model_type"] in ("gemma", "gemma2", "gemma3") else 0)
    load_weights(read_spec(config, to_run=True), inventor, ReferenceBackend("float32"), 16)
    return inventor.made


def weights_of(config: dict[str, Any]) -> dict[str, np.ndarray]:
    """Random tensors of every name the family has, loud enough that attention is far from uniform."""
    random = np.random.default_rng(len(config["architectures"][0]))
    hidden, inner, head = config["hidden_size"], config["intermediate_size"], config["head_dim"]
    heads, groups = config["num_attention_heads"], config["num_key_value_heads"]
    model_type = config["model_type"]

    def matrix(*shape: int, scale: float = 0.2) -> np.ndarray:
        return (random.standard_normal(shape) * scale).astype(np.float32)

    def norm(size: int) -> np.ndarray:
        return random.uniform(0.5, 1.5, size).astype(np.float32)

    tensors = {
        "model.embed_tokens.weight": matrix(config["vocab_size"], hidden, scale=0.5),
        "model.norm.weight": norm(hidden),
    }
    if not config.get("tie_word_embeddings"):
        tensors["lm_head.weight"] = matrix(config["vocab_size"], hidden)
    for layer in range(config["num_hidden_layers"]):
        at = f"model.layers.{layer}."
        tensors[at + "input_layernorm.weight"] = norm(hidden)
        tensors[at + "post_attention_layernorm.weight"] = norm(hidden)
        tensors[at + "mlp.gate_proj.weight"] = matrix(inner, hidden)
        tensors[at + "mlp.up_proj.weight"] = matrix(inner, hidden)
        tensors[at + "mlp.down_proj.weight"] = matrix(hidden, inner)
        tensors[at + "self_attn.o_proj.weight"] = matrix(hidden, heads * head)
        for name, count in (("q", heads), ("k", groups), ("v", groups)):
            tensors[at + f"self_attn.{name}_proj.weight"] = matrix(count * head, hidden)
            if model_type == "qwen2":
                tensors[at + f"self_attn.{name}_proj.bias"] = matrix(count * head, scale=0.3)
        if model_type == "qwen3":
            tensors[at + "self_attn.q_norm.weight"] = norm(head)
            tensors[at + "self_attn.k_norm.weight"] = norm(head)
    return tensors
