"""GGUF files for tests: written by the format's own library, from folders in Hugging Face format or from nothing.

Knows what llama.cpp's converter does to the tensors and settings of the families that are tried. Does not know how any
of it is read.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from gguf import GGMLQuantizationType as Type
from safetensors.numpy import load_file

Quantize = Callable[[str, np.ndarray], Type]


def plain(name: str, values: np.ndarray) -> Type:
    return Type.F32


def convert(folder: Path, path: Path, architecture: str, quantize: Quantize = plain, **more: Any) -> Path:
    """The model of a folder as one file. quantize: the type of each tensor of two dimensions, by the file's name for
    it. more: further keys of the architecture, `__` for a dot."""
    config = json.loads((folder / "config.json").read_text())
    writer = gguf.GGUFWriter(path, architecture)
    keys(writer, config)
    for key, value in more.items():
        put(writer, f"{architecture}.{key.replace('__', '.')}", value)
    vocabulary(writer, folder)
    names = gguf.get_tensor_name_map(next(a for a, n in gguf.MODEL_ARCH_NAMES.items() if n == architecture), 64)
    for name, values in load_file(folder / "model.safetensors").items():
        if name == "lm_head.weight" and config.get("tie_word_embeddings"):
            continue
        called = names.get_name(name, try_suffixes=(".weight", ".bias"))
        assert called is not None, name
        add(writer, called, as_converted(architecture, name, values, config), quantize)
    return finish(writer, path)


def as_converted(architecture: str, name: str, values: np.ndarray, config: Mapping[str, Any]) -> np.ndarray:
    """What the converter does: Llama's queries and keys in pairs of neighbours, Gemma's norms with 1 added."""
    if architecture == "llama" and (".q_proj." in name or ".k_proj." in name):
        heads = config["num_attention_heads"] if ".q_proj." in name else config["num_key_value_heads"]
        return values.reshape(heads, 2, -1, *values.shape[1:]).swapaxes(1, 2).reshape(values.shape)
    return values + 1 if architecture.startswith("gemma") and name.endswith("norm.weight") else values


def keys(writer: gguf.GGUFWriter, config: Mapping[str, Any]) -> None:
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_freq_base(config.get("rope_theta") or config.get("rope_parameters", {}).get("rope_theta", 10_000.0))
    if config.get("head_dim"):
        writer.add_key_length(config["head_dim"])
        writer.add_rope_dimension_count(config["head_dim"])


def vocabulary(writer: gguf.GGUFWriter, folder: Path) -> None:
    """tokenizer.json (byte-level BPE, split as GPT-2 does) and what is beside it; nothing where there is none."""
    if not (folder / "tokenizer.json").exists():
        return
    data = json.loads((folder / "tokenizer.json").read_text())
    byte_level(writer, data)
    config = json.loads((folder / "tokenizer_config.json").read_text())
    ids = {**data["model"]["vocab"], **{one["content"]: one["id"] for one in data["added_tokens"]}}
    for name in ("bos", "eos"):
        if f"{name}_token" in config:
            writer.add_uint32(f"tokenizer.ggml.{name}_token_id", ids[config[f"{name}_token"]])
    writer.add_add_bos_token(bool(config.get("add_bos_token")))
    if "chat_template" in config:
        writer.add_chat_template(config["chat_template"])


def byte_level(writer: gguf.GGUFWriter, data: Mapping[str, Any], pre: str = "gpt-2") -> None:
    model, added = data["model"], {one["id"]: one for one in data["added_tokens"]}
    tokens = {number: token for token, number in model["vocab"].items()} | {
        n: one["content"] for n, one in added.items()
    }
    count = max(tokens) + 1
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    writer.add_token_list([tokens.get(number, f"[PAD{number}]") for number in range(count)])
    kinds = [(3 if added[n]["special"] else 4) if n in added else 1 if n in tokens else 5 for n in range(count)]
    writer.add_token_types(kinds)
    writer.add_token_merges([" ".join(one) if isinstance(one, list) else one for one in model["merges"]])


def put(writer: gguf.GGUFWriter, key: str, value: Any) -> None:
    match value:
        case bool():
            writer.add_bool(key, value)
        case int():
            writer.add_uint32(key, value)
        case float():
            writer.add_float32(key, value)
        case str():
            writer.add_string(key, value)
        case _:
            writer.add_array(key, value)


def add(writer: gguf.GGUFWriter, name: str, values: np.ndarray, quantize: Quantize = plain) -> None:
    kind = quantize(name, values) if values.ndim > 1 else Type.F32
    values = np.ascontiguousarray(values.squeeze() if values.ndim > 2 and 1 in values.shape else values)
    if kind == Type.F32:
        writer.add_tensor(name, values.astype(np.float32))
    else:
        writer.add_tensor(name, gguf.quants.quantize(values.astype(np.float32), kind), raw_dtype=kind)


def finish(writer: gguf.GGUFWriter, path: Path) -> Path:
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
