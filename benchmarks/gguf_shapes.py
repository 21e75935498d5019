"""GGUF files of real sizes with random weights: shapes, types of blocks and a vocabulary as published files have them.

Holds the types that llama.cpp's quantizer gives a file of Qwen2.5-0.5B (Q4_0 with the tied output projection in Q8_0,
or all in 4 bits), the same shape with inputs that K-quants divide (Q4_K_M), and a mixture of experts. The vocabulary is
made of merges of random tokens that came before, so that merges and lengths are spread as those of a trained one.
Weights are random, their scales so small that nothing overflows.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from pathlib import Path

import gguf
import numpy as np
from gguf import GGMLQuantizationType as Type

from benchmarks.shapes import MOE_2B, QWEN25_05B

_ALPHABET = [chr(one) for one in (*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100), *range(0x100, 0x144))]
_SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
_CHAT = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
# Inputs that blocks of 256 divide.
_WIDER = {"hidden_size": 1024, "intermediate_size": 4864, "num_attention_heads": 16}
# By name: the shape; the type of its layers, of those matrices that Q4_K_M makes larger, of its tables.
KINDS: Mapping[str, tuple[Mapping[str, object], Type, Type, Type]] = {
    "Q4_0": (QWEN25_05B, Type.Q4_0, Type.Q4_0, Type.Q8_0),
    "Q4_0-pure": (QWEN25_05B, Type.Q4_0, Type.Q4_0, Type.Q4_0),
    "Q8_0": (QWEN25_05B, Type.Q8_0, Type.Q8_0, Type.Q8_0),
    "Q4_K_M": ({**QWEN25_05B, **_WIDER}, Type.Q4_K, Type.Q6_K, Type.Q6_K),
    "experts-Q4_K_M": ({**MOE_2B, "num_hidden_layers": 6}, Type.Q4_K, Type.Q6_K, Type.Q6_K),
}
# Bytes of a block that are float16 scales: all of them are made small.
_SCALES = {Type.Q4_0: (0,), Type.Q8_0: (0,), Type.Q4_K: (0, 2), Type.Q6_K: (208,)}


def write_gguf(path: Path, kind: str) -> Path:
    """One file of `KINDS`."""
    shape, usual, larger, tables = KINDS[kind]
    size = {key: value for key, value in shape.items() if isinstance(value, int)}
    hidden, vocabulary, layers = size["hidden_size"], size["vocab_size"], size["num_hidden_layers"]
    writer = gguf.GGUFWriter(path, "qwen3moe" if "num_experts" in size else "qwen2")
    writer.add_context_length(size["max_position_embeddings"])
    writer.add_embedding_length(hidden)
    writer.add_block_count(layers)
    writer.add_feed_forward_length(size["intermediate_size"])
    writer.add_head_count(size["num_attention_heads"])
    writer.add_head_count_kv(size["num_key_value_heads"])
    writer.add_key_length(64)
    writer.add_value_length(64)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_rope_freq_base(1e6)
    if "num_experts" in size:
        writer.add_expert_count(size["num_experts"])
        writer.add_expert_used_count(size["num_experts_per_tok"])
        writer.add_expert_feed_forward_length(size["moe_intermediate_size"])
    _vocabulary(writer, vocabulary)
    rng = np.random.default_rng(0)
    _matrix(writer, rng, "token_embd.weight", (vocabulary, hidden), tables)
    _vector(writer, "output_norm.weight", hidden)
    for layer in range(layers):
        _layer(writer, rng, layer, size, usual, larger if _is_larger(layer, layers) else usual)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _is_larger(layer: int, layers: int) -> bool:
    """Return whether Q4_K_M holds values and down projections of this layer in Q6_K, as in llama.cpp's quantizer."""
    eighth = layers // 8
    return layer < eighth or layer >= 7 * layers // 8 or (layer - eighth) % 3 == 2


def _layer(
    writer: gguf.GGUFWriter, rng: np.random.Generator, layer: int, size: Mapping[str, int], usual: Type, larger: Type
) -> None:
    hidden, experts = size["hidden_size"], size.get("num_experts")
    heads, kv_heads = size["num_attention_heads"], size["num_key_value_heads"]
    name = f"blk.{layer}."
    for norm in ("attn_norm", "ffn_norm"):
        _vector(writer, f"{name}{norm}.weight", hidden)
    for part, rows, kind in (("q", heads * 64, usual), ("k", kv_heads * 64, usual), ("v", kv_heads * 64, larger)):
        _matrix(writer, rng, f"{name}attn_{part}.weight", (rows, hidden), kind)
        if experts is None:
            _vector(writer, f"{name}attn_{part}.bias", rows)
        elif part != "v":
            _vector(writer, f"{name}attn_{part}_norm.weight", 64)
    _matrix(writer, rng, f"{name}attn_output.weight", (hidden, heads * 64), _fitting(usual, heads * 64))
    stacked: tuple[int, ...] = ()
    suffix, wide = "", size["intermediate_size"]
    if experts is not None:
        stacked, suffix, wide = (experts,), "_exps", size["moe_intermediate_size"]
        writer.add_tensor(f"{name}ffn_gate_inp.weight", rng.standard_normal((experts, hidden), np.float32))
    for part, outputs, inputs in (("gate", wide, hidden), ("up", wide, hidden), ("down", hidden, wide)):
        kind = larger if part == "down" else usual
        _matrix(writer, rng, f"{name}ffn_{part}{suffix}.weight", (*stacked, outputs, inputs), kind)


def _fitting(kind: Type, inputs: int) -> Type:
    """As llama.cpp's quantizer does where the inputs are no whole number of blocks."""
    return kind if inputs % gguf.GGML_QUANT_SIZES[kind][0] == 0 else Type.Q8_0


def _vector(writer: gguf.GGUFWriter, name: str, length: int) -> None:
    writer.add_tensor(name, np.ones(length, np.float32))


def _matrix(writer: gguf.GGUFWriter, rng: np.random.Generator, name: str, shape: tuple[int, ...], kind: Type) -> None:
    values, nbytes = gguf.GGML_QUANT_SIZES[kind]
    blocks = rng.integers(0, 256, (*shape[:-1], shape[-1] // values, nbytes), np.uint8)
    for at in _SCALES[kind]:
        scales = rng.uniform(0.001, 0.01, (*blocks.shape[:-1], 1)).astype(np.float16)
        blocks[..., at : at + 2] = scales.view(np.uint8)
    writer.add_tensor(name, blocks.reshape(*shape[:-1], -1), raw_dtype=kind)


def _vocabulary(writer: gguf.GGUFWriter, size: int) -> None:
    """Byte-level BPE, split as Qwen2 does; special tokens behind the others, then those that only fill the table up."""
    choose = random.Random(0)
    tokens, merges = list(_ALPHABET), []
    known = set(tokens)
    while len(tokens) < size - 300:
        # The earlier a token is, the likelier it is merged again.
        left, right = (tokens[int(len(tokens) * choose.random() ** 4)] for _ in range(2))
        if left + right not in known and len(left + right) <= 32:
            known.add(left + right)
            tokens.append(left + right)
            merges.append(f"{left} {right}")
    ends = len(tokens)
    tokens += _SPECIAL
    kinds = [1] * ends + [3] * len(_SPECIAL) + [5] * (size - len(tokens))
    tokens += [f"[PAD{number}]" for number in range(len(tokens), size)]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen2")
    writer.add_token_list(tokens)
    writer.add_token_types(kinds)
    writer.add_token_merges(merges)
    writer.add_eos_token_id(ends)
    writer.add_add_bos_token(False)
    writer.add_chat_template(_CHAT)
