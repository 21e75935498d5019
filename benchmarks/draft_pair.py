"""Two models of which one drafts for the other with a known chance of being right, made of random weights.

The draft model is the first layers of the model: the model's other layers add nothing (their output projections are 0),
so that both have the same logits, to the bit, at a part of the cost. Then some tokens are marked, in both: their
embeddings alone have a first coordinate, which no layer writes. The draft model's output projection reads it, and says
one certain token behind each marked one. The logits are nearly flat otherwise, so that at temperature 1 every token is
about as likely as any other, and a draft behind a token drawn so is wrong as often as tokens are marked, whatever came
before: drafts are right with a chance of 1 - wrong · (1 - 1 / V) each, independent of each other.
"""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

import inflight

BUILT_IN = Path(inflight.__file__).parent / "builtin_model"
LOUD = 100.0  # weight of the mark; normed, it is some units long


@dataclass(frozen=True, slots=True)
class PairShape:
    """draft_layers: of the model's layers. wrong: share of the tokens that are marked. Heads are 64 wide, at most."""

    vocab_size: int = 2048
    hidden_size: int = 64
    inner_size: int = 128
    heads: int = 4
    kv_heads: int = 2
    layers: int = 10
    draft_layers: int = 1
    wrong: float = 0.3
    max_positions: int = 4096

    @property
    def acceptance(self) -> float:
        """The chance of each draft to be right if those before it are."""
        return 1 - self.wrong * (1 - 1 / self.vocab_size)

    def expected_tokens(self, drafts: int) -> float:
        """Return the expected tokens of a step with so many drafts of a sequence: E = (1 - a^(k + 1)) / (1 - a)."""
        a = self.acceptance
        return float(drafts + 1) if a == 1 else (1 - a ** (drafts + 1)) / (1 - a)


def write_pair(folder: Path, shape: PairShape, seed: int = 0) -> tuple[Path, Path]:
    """The folders of the model and of its draft model, with the built-in tokenizer."""
    random = np.random.default_rng(seed)
    tensors = _outside(shape, random)
    for layer in range(shape.layers):
        tensors |= _layer(shape, layer, random, adds=layer < shape.draft_layers)
    of_draft = {name: one for name, one in tensors.items() if _layer_of(name) < shape.draft_layers}
    of_draft["lm_head.weight"] = tensors["lm_head.weight"].copy()
    of_draft["lm_head.weight"][-1, 0] = LOUD  # the last token, so that all others' cumulative chances stay
    return (
        _write(folder / "model", shape, shape.layers, tensors),
        _write(folder / "draft", shape, shape.draft_layers, of_draft),
    )


def _outside(shape: PairShape, random: np.random.Generator) -> dict[str, Any]:
    """Return what is not in a layer."""
    size = (shape.vocab_size, shape.hidden_size)
    embedding = random.standard_normal(size, np.float32)
    marked = random.permutation(shape.vocab_size)[: round(shape.wrong * shape.vocab_size)]
    embedding[:, 0] = 0
    embedding[marked, 0] = shape.hidden_size**0.5
    output = random.standard_normal(size, np.float32) * np.float32(0.02 / shape.hidden_size**0.5)
    output[:, 0] = 0
    return {
        "model.embed_tokens.weight": embedding.astype(np.float16),
        "model.norm.weight": np.ones(shape.hidden_size, np.float16),
        "lm_head.weight": output.astype(np.float16),
    }


def _layer(shape: PairShape, layer: int, random: np.random.Generator, adds: bool) -> dict[str, Any]:
    """adds: whether it changes the residual stream; the first coordinate never."""
    hidden, inner, at = shape.hidden_size, shape.inner_size, f"model.layers.{layer}."

    def matrix(rows: int, columns: int) -> Any:
        return (random.standard_normal((rows, columns), np.float32) / columns**0.5).astype(np.float16)

    def output(columns: int) -> Any:
        found = matrix(hidden, columns) if adds else np.zeros((hidden, columns), np.float16)
        found[0] = 0
        return found

    width, kv_width = shape.heads * _head_dim(shape), shape.kv_heads * _head_dim(shape)
    return {
        at + "input_layernorm.weight": np.ones(hidden, np.float16),
        at + "post_attention_layernorm.weight": np.ones(hidden, np.float16),
        at + "self_attn.q_proj.weight": matrix(width, hidden),
        at + "self_attn.k_proj.weight": matrix(kv_width, hidden),
        at + "self_attn.v_proj.weight": matrix(kv_width, hidden),
        at + "self_attn.o_proj.weight": output(width),
        at + "mlp.gate_proj.weight": matrix(inner, hidden),
        at + "mlp.up_proj.weight": matrix(inner, hidden),
        at + "mlp.down_proj.weight": output(inner),
    }


def _head_dim(shape: PairShape) -> int:
    return min(64, shape.hidden_size // shape.heads)


def _layer_of(name: str) -> int:
    parts = name.split(".")
    return int(parts[2]) if parts[1] == "layers" else -1


def _write(folder: Path, shape: PairShape, layers: int, tensors: dict[str, Any]) -> Path:
    folder.mkdir(parents=True)
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": shape.vocab_size,
        "hidden_size": shape.hidden_size,
        "intermediate_size": shape.inner_size,
        "num_hidden_layers": layers,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "head_dim": _head_dim(shape),
        "max_position_embeddings": shape.max_positions,
        "rms_norm_eps": 1e-5,
        "tie_word_embeddings": False,
        "torch_dtype": "float16",
    }
    (folder / "config.json").write_text(json.dumps(config))
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(BUILT_IN / name, folder / name)
    save_file(tensors, folder / "model.safetensors")
    return folder
