"""GGUF files for tests: written by the format's own library, from folders in Hugging Face format or from nothing.

Knows what llama.cpp's converter does to the tensors and settings of the families that are tried. Does not know how any
of it is read.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from gguf import GGMLQuantizationType as Type
from safetensors.numpy import load_file

# Converted by Llama's class, and with 1 added to what norms are stored less.
_PAIRED = frozenset(("llama", "smollm3", "granite", "granitemoe", "arcee", "mistral3"))
_ADDED_ONE = frozenset(("gemma", "gemma2", "gemma3", "qwen35", "qwen35moe", "qwen3next", "nemotron"))
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
    learnt(writer, folder)
    separate = any(key.endswith("key_length_mla") for key in more)
    for name, values in converted(architecture, folder, config, separate).items():
        add(writer, name, values, quantize)
    return finish(writer, path)


def converted(
    architecture: str, folder: Path, config: Mapping[str, Any], separate: bool = True
) -> dict[str, np.ndarray]:
    """All tensors as the converter names and changes them. separate: of latent attention, keys and values."""
    names = gguf.get_tensor_name_map(next(a for a, n in gguf.MODEL_ARCH_NAMES.items() if n == architecture), 64)
    own = {".linear_attn.dt_bias": "ssm_dt.bias", ".mlp.gate.e_score_correction_bias": "exp_probs_b.bias"}
    own |= {".self_attn.sinks": "attn_sinks.weight", ".layer_scalar": "layer_output_scale.weight"}
    own |= {".moe_statics.e_score_correction_bias": "exp_probs_b.bias", ".expert_bias": "exp_probs_b.bias"}
    own |= {".router.scale": "ffn_gate_inp.scale", ".router.per_expert_scale": "ffn_down_exps.scale"}
    own |= {f".experts.{part}_proj": f"ffn_{part}_exps.weight" for part in ("gate_up", "down")}
    found: dict[str, np.ndarray] = {}
    stacks: dict[str, list[np.ndarray]] = {}
    tensors = load_file(folder / "model.safetensors")
    for name in sorted(tensors, key=lambda one: [int(part) if part.isdigit() else part for part in one.split(".")]):
        values = tensors[name]
        if name == "lm_head.weight" and config.get("tie_word_embeddings"):
            continue
        if ".act_fn." in name:  # which become metadata
            continue
        if expert := re.fullmatch(r"(.+\.experts)\.\d+\.(\w+)(\.weight)", name):
            stack = f"{expert[1]}.{expert[2]}".replace("model.", "", ".feed_forward." in name)  # LFM2's as Mixtral's
            stacks.setdefault(str(names.get_name(stack)) + expert[3], []).append(values)
        elif turned := re.fullmatch(r"model\.layers\.(\d+)\.mlp\.experts\.(gate_up|down)_proj(_bias)?", name):
            found |= harmony(*turned.groups(), values)
        elif name.endswith("_linear.weight") and architecture == "granitemoe":
            found |= granite_stacks(name, values)
        elif name.endswith("in_proj_qkvz.weight"):
            layer = name.split(".")[2]
            parts = of_key_heads(values, config)
            found |= {f"blk.{layer}.{called}.weight": one for called, one in parts.items()}
        elif name.endswith("kv_b_proj.weight") and separate:
            found |= split_keys_and_values(str(names.get_name(name, try_suffixes=(".weight",))), values, config)
        else:
            layer, end = name.split(".")[2:3], next((one for one in own if name.endswith(one)), None)
            called = f"blk.{layer[0]}.{own[end]}" if end else names.get_name(name, try_suffixes=(".weight", ".bias"))
            assert called is not None, name
            found[called] = as_converted(architecture, name, values, config)
    if architecture == "gemma4":
        found["rope_freqs.weight"] = proportional(config)
    found |= divisors(config)
    return found | {name: np.stack(values) for name, values in stacks.items()}


def proportional(config: Mapping[str, Any]) -> np.ndarray:
    """Gemma 4: divisors of the frequencies of layers that see all, of which only some pairs turn."""
    pairs = max(one["head_dim"] for one in config["per_layer_config"].values()) // 2
    turned = int(pairs * config["rope_parameters"]["full_attention"]["partial_rotary_factor"])
    return np.where(np.arange(pairs) < turned, 1, 1e30).astype(np.float32)


def divisors(config: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Return the factors of the frequencies: Llama 3's, and LongRoPE's two lists."""
    rope = config.get("rope_parameters") or {}
    if rope.get("rope_type") == "longrope":
        return {f"rope_factors_{one}.weight": np.array(rope[f"{one}_factor"]) for one in ("short", "long")}
    if rope.get("rope_type") != "llama3":
        return {}
    head = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    lengths = 2 * np.pi * rope["rope_theta"] ** (np.arange(0, head, 2) / head)
    low, high = rope["low_freq_factor"], rope["high_freq_factor"]
    smooth = np.clip((rope["original_max_position_embeddings"] / lengths - low) / (high - low), 0, 1)
    return {"rope_freqs.weight": 1 / ((1 - smooth) / rope["factor"] + smooth)}


def as_converted(architecture: str, name: str, values: np.ndarray, config: Mapping[str, Any]) -> np.ndarray:
    """Change tensors as the converter does: Llama's queries and keys in pairs of neighbours, norms stored less 1 with
    it added, heads of values dealt out among those of keys."""
    if architecture in _PAIRED and (".q_proj." in name or ".k_proj." in name):
        heads = config["num_attention_heads"] if ".q_proj." in name else config["num_key_value_heads"]
        return values.reshape(heads, 2, -1, *values.shape[1:]).swapaxes(1, 2).reshape(values.shape)
    if architecture in _ADDED_ONE and name.endswith("norm.weight") and "linear_attn" not in name:
        return values + 1
    if ".linear_attn." in name and architecture.startswith("qwen35"):
        return dealt_out(name, -np.exp(values) if name.endswith("A_log") else values, config)
    return -np.exp(values) if name.endswith("A_log") else values


def of_key_heads(values: np.ndarray, config: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Qwen3-Next: of rows that are in order of heads of keys queries, keys and values, and the gate."""
    heads, key = config["linear_num_key_heads"], config["linear_key_head_dim"]
    own = config["linear_num_value_heads"] // heads * config["linear_value_head_dim"]
    parts = np.split(values.reshape(heads, -1, values.shape[1]), [key, 2 * key, 2 * key + own], axis=1)
    *qkv, z = (one.reshape(-1, values.shape[1]) for one in parts)
    return {"attn_qkv": np.concatenate(qkv), "attn_gate": z}


def dealt_out(name: str, values: np.ndarray, config: Mapping[str, Any]) -> np.ndarray:
    if name.endswith("norm.weight"):
        return values
    groups, heads = config["linear_num_key_heads"], config["linear_num_value_heads"]

    def deal(rows: np.ndarray) -> np.ndarray:
        return rows.reshape(groups, heads // groups, -1, *rows.shape[1:]).swapaxes(0, 1).reshape(rows.shape)

    if "out_proj" in name:
        return deal(values.T).T
    before = 2 * groups * config["linear_key_head_dim"] if "qkv" in name or "conv1d" in name else 0
    return np.concatenate((values[:before], deal(values[before:])))


def harmony(layer: str, matrix: str, bias: str | None, values: np.ndarray) -> dict[str, np.ndarray]:
    """gpt-oss: inputs by outputs, of which every second one is gate's."""
    rows = values if bias else values.swapaxes(1, 2)
    parts = {"down": rows} if matrix == "down" else {"gate": rows[:, ::2], "up": rows[:, 1::2]}
    return {f"blk.{layer}.ffn_{part}_exps.{'bias' if bias else 'weight'}": one for part, one in parts.items()}


def granite_stacks(name: str, values: np.ndarray) -> dict[str, np.ndarray]:
    """Granite's outputs of gate and then of up, of experts or of the shared MLP."""
    at, end = f"blk.{name.split('.')[2]}", "shexp" if ".shared_mlp." in name else "exps"
    if ".output_" in name:
        return {f"{at}.ffn_down_{end}.weight": values}
    parts = dict(zip(("gate", "up"), np.split(values, 2, axis=-2), strict=True))
    return {f"{at}.ffn_{part}_{end}.weight": one for part, one in parts.items()}


def split_keys_and_values(name: str, values: np.ndarray, config: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Latent attention: keys turned, and values, of each head."""
    heads = values.reshape(config["num_attention_heads"], -1, config["kv_lora_rank"])
    keys, rest = np.split(heads, [config["qk_nope_head_dim"]], axis=1)
    return {name.replace("kv_b", "k_b"): keys.swapaxes(1, 2), name.replace("kv_b", "v_b"): rest}


def keys(writer: gguf.GGUFWriter, config: Mapping[str, Any]) -> None:
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(kv_heads(config))
    if rms := config.get("rms_norm_eps") or config.get("norm_eps"):
        writer.add_layer_norm_rms_eps(rms)
    names = ("layer_norm_eps", "layer_norm_epsilon", "norm_epsilon", "norm_eps")
    if eps := next((config[name] for name in names if name in config), None):
        writer.add_layer_norm_eps(eps)
    rope = config.get("rope_parameters") or {}
    rope = rope.get("full_attention", rope)
    writer.add_rope_freq_base(config.get("rope_theta") or rope.get("rope_theta", 10_000.0))
    if head_dim := config.get("head_dim"):
        writer.add_key_length(head_dim)
        writer.add_rope_dimension_count(int(head_dim * rope.get("partial_rotary_factor", 1)))


def learnt(writer: gguf.GGUFWriter, folder: Path) -> None:
    """By xIELU, of each layer."""
    tensors = {name: one for name, one in load_file(folder / "model.safetensors").items() if ".act_fn." in name}
    layers = sorted({int(name.split(".")[2]) for name in tensors})
    for part, put_in in (("alpha_p", writer.add_xielu_alpha_p), ("alpha_n", writer.add_xielu_alpha_n)):
        if layers:
            put_in([float(tensors[f"model.layers.{layer}.mlp.act_fn.{part}"].item()) for layer in layers])


def kv_heads(config: Mapping[str, Any]) -> int | list[int]:
    """LFM2 says of each layer; its convolutions have none."""
    count = config["num_key_value_heads"]
    types = config.get("layer_types") or ()
    return [count if one == "full_attention" else 0 for one in types] if "conv" in types else count


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
