"""Model shapes to measure with random weights: folders that hold a config.json and nothing else."""

from __future__ import annotations

import json
from pathlib import Path

QWEN25_05B = {
    "architectures": ["Qwen2ForCausalLM"],
    "model_type": "qwen2",
    "hidden_size": 896,
    "num_hidden_layers": 24,
    "num_attention_heads": 14,
    "num_key_value_heads": 2,
    "intermediate_size": 4864,
    "vocab_size": 151936,
    "max_position_embeddings": 32768,
    "tie_word_embeddings": True,
    "rope_theta": 1000000.0,
    "rms_norm_eps": 1e-06,
    "hidden_act": "silu",
    "use_sliding_window": False,
    "torch_dtype": "bfloat16",
}


def write_config(folder: Path, shape: dict[str, object]) -> str:
    """Makes the folder a model for --load-format dummy; returns its path as text."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(shape))
    return str(folder)
