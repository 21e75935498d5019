"""A small random Llama whose activations have outliers, as trained models do: a few channels far above the others.

Plain random weights yield activations whose largest number is three or four times their root mean square. In Gemma 3
270M it is 15 times that at the inputs of the attention's products, and 25 times at those of `down_proj`. One scale for
a whole token is then coarse for all its other channels, which no plain random model shows.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from models import write_model
from safetensors.numpy import save_file

HIDDEN, INNER, HEAD, HEADS, KV_HEADS, LAYERS, VOCABULARY = 640, 2048, 64, 8, 2, 2, 384
CHANNEL = 77  # of the hidden states, where all embeddings are large
AT_EMBEDDING, AT_NORMS = 4.0, 5.0  # how large, and how much larger norms make it
INNER_CHANNELS, AT_UP = 6, 16.0  # of the inner states, and their rows of up_proj beside the others
INTO_STREAM = 0.4  # what layers add to the hidden states, beside the embeddings
SHARPNESS = 3.0  # standard deviation of logits, about


def write_outlier_model(folder: Path, with_outliers: bool = True) -> Path:
    """Write a checkpoint in bf16's precision; without outliers it is the same but for them."""
    write_model(
        folder,
        hidden_size=HIDDEN,
        intermediate_size=INNER,
        head_dim=HEAD,
        num_attention_heads=HEADS,
        num_key_value_heads=KV_HEADS,
        num_hidden_layers=LAYERS,
        tie_word_embeddings=False,
        torch_dtype="bfloat16",
    )
    random = np.random.default_rng(3)

    def matrix(rows: int, columns: int, scale: float = 1.0) -> np.ndarray:
        return (random.standard_normal((rows, columns)) * scale / np.sqrt(columns)).astype(np.float32)

    def norm() -> np.ndarray:
        weight = random.uniform(0.8, 1.2, HIDDEN).astype(np.float32)
        if with_outliers:
            weight[CHANNEL] = AT_NORMS
        return weight

    embeddings = random.standard_normal((VOCABULARY, HIDDEN)).astype(np.float32)
    if with_outliers:
        embeddings[:, CHANNEL] = np.copysign(
            random.uniform(0.8, 1.2, VOCABULARY) * AT_EMBEDDING, embeddings[:, CHANNEL]
        )
    tensors = {
        "model.embed_tokens.weight": embeddings,
        "lm_head.weight": matrix(VOCABULARY, HIDDEN, SHARPNESS),
        "model.norm.weight": norm(),
    }
    for layer in range(LAYERS):
        at = f"model.layers.{layer}."
        up = matrix(INNER, HIDDEN)
        if with_outliers:
            up[random.choice(INNER, INNER_CHANNELS, replace=False)] *= AT_UP
        tensors |= {
            at + "input_layernorm.weight": norm(),
            at + "post_attention_layernorm.weight": norm(),
            at + "mlp.gate_proj.weight": matrix(INNER, HIDDEN),
            at + "mlp.up_proj.weight": up,
            at + "mlp.down_proj.weight": matrix(HIDDEN, INNER, INTO_STREAM),
            at + "self_attn.q_proj.weight": matrix(HEADS * HEAD, HIDDEN),
            at + "self_attn.k_proj.weight": matrix(KV_HEADS * HEAD, HIDDEN),
            at + "self_attn.v_proj.weight": matrix(KV_HEADS * HEAD, HIDDEN),
            at + "self_attn.o_proj.weight": matrix(HIDDEN, HEADS * HEAD, INTO_STREAM),
        }
    save_file(tensors, folder / "model.safetensors")
    return folder
