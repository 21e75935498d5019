"""Make of a GGUF file's metadata the config.json that Hugging Face has of the same model.

This module reads the shapes that all architectures have, by the names of llama.cpp's converter, and what a folder has
beside safetensors: the weight format, end tokens, sampling defaults. The families read the config.json that it makes,
so that there is one reader of shapes.
"""

from __future__ import annotations

import itertools
import math
import re

from inflight.json_file import shown
from inflight.models.errors import ModelError
from inflight.models.gguf.architectures import ARCHITECTURES
from inflight.models.gguf.gguf_model import GGUFModel
from inflight.models.gguf.keys import SLIDING, Config, Keys, by_kind
from inflight.models.gguf.rope import rope_of

_TOKENS = "tokenizer.ggml.tokens"
_SPECIAL = frozenset((3, 4))  # types of tokens: control tokens, and those that were defined by hand
# Tokens that end an answer, whatever the file calls its end token: llama.cpp looks for them by their spelling, too.
_ENDS = frozenset(
    (
        "<|eot_id|>",
        "<|eom_id|>",
        "<|im_end|>",
        "<|end|>",
        "<|return|>",
        "<|call|>",
        "<|endoftext|>",
        "<|end_of_text|>",
        "<end_of_turn>",
        "<turn|>",
        "<EOT>",
        "<\uff5cend\u2581of\u2581sentence\uff5c>",
    )
)
# Keys of a file, by the names that its config.json has for them.
_KEYS = {
    "hidden_size": "embedding_length",
    "intermediate_size": "feed_forward_length",
    "num_hidden_layers": "block_count",
    "num_attention_heads": "attention.head_count",
    "num_key_value_heads": "attention.head_count_kv",
    "head_dim": "attention.key_length",
    "max_position_embeddings": "context_length",
    "rms_norm_eps": "attention.layer_norm_rms_epsilon",
    "rope_theta": "rope.freq_base",
    "sliding_window": "attention.sliding_window",
    "attn_logit_softcapping": "attn_logit_softcapping",
    "final_logit_softcapping": "final_logit_softcapping",
    **dict.fromkeys(("num_experts", "num_local_experts", "n_routed_experts"), "expert_count"),
    "num_experts_per_tok": "expert_used_count",
    "moe_intermediate_size": "expert_feed_forward_length",
}


def config_of(model: GGUFModel) -> Config:
    """Make a config.json of a GGUF file's keys. Raises ModelError for unknown architectures and bad keys."""
    keys = Keys(model)
    known = ARCHITECTURES.get(keys.architecture)
    if known is None:
        raise ModelError(
            f"{model.path} holds a model of the architecture {shown(keys.architecture)}, which is not read from GGUF; "
            f"read are {', '.join(sorted(ARCHITECTURES))}."
        )
    name, own = known
    rope = {} if keys.architecture == "gemma4" else rope_of(keys)  # which has one for each kind of layer
    return {**_common(keys), "architectures": [name], **rope, **own(keys)}


def in_terms_of_file(error: ModelError, model: GGUFModel) -> ModelError:
    """Reword an error about config.json, which a GGUF file does not have, with the file's path and its keys."""
    keys, path = Keys(model), str(model.path)

    def name(found: re.Match[str]) -> str:
        key = _KEYS.get(found[0])
        return found[0] if key is None or key not in keys else f"{keys.architecture}.{key}"

    text = re.sub(r"\w+", name, str(error)).replace("config.json", path)
    return ModelError(text if path in text else f"{path}: {text}")


def refuse_more_weights(model: GGUFModel, described: int) -> None:
    """Raise ModelError for a file with more weights than its metadata describe. Some of them (a bias, a norm) would
    not be read, and the answers would be nonsense. Weights that are missing are named when the file is loaded.

    Factors of the rotation and of whole layers are settings, and further layers only predict further tokens
    (`Keys.layers`). Keys and values of layers that read another's may be there, and mean nothing.
    """
    keys = Keys(model)
    shared = keys.find("attention.shared_kv_layers") if keys.architecture == "gemma4" else None
    layers, own = keys.layers, keys.layers - (shared or 0)
    held = sum(
        math.prod(entry.shape)
        for name, (_, entry) in model.tensors.items()
        if not name.startswith("rope_")
        and _layer(name) < layers
        and not name.endswith("layer_output_scale.weight")
        and not (_layer(name) >= own and _part(name).startswith(("attn_k", "attn_v")))
    )
    if held > described:
        raise ModelError(
            f"{model.path} holds {held:,} weights, {held - described:,} more than models of the shape in its metadata "
            "have; it is of another kind than it says, so take another file, or the model's safetensors."
        )


def _layer(name: str) -> int:
    """Return the number of a tensor's layer; -1 for tensors outside the layers."""
    number = name.split(".")[1] if name.startswith("blk.") else ""
    return int(number) if number.isdecimal() and len(number) < 6 else -1


def _part(name: str) -> str:
    """Return a layer tensor's name without the layer's prefix and number."""
    return name.partition(".")[2].partition(".")[2]


def generation_of(model: GGUFModel) -> Config:
    """How the model's authors would have it sampled, as generation_config.json says it."""
    names = {"temp": "temperature", "top_k": "top_k", "top_p": "top_p", "min_p": "min_p"}
    names["penalty_repeat"] = "repetition_penalty"
    given = {name: model.metadata.number(f"general.sampling.{key}") for key, name in names.items()}
    return {name: value if value is None else float(f"{value:.7g}") for name, value in given.items()}


def _common(keys: Keys) -> Config:
    table = keys.model.shape("token_embd.weight")
    if table is None or len(table) != 2:
        raise ModelError(f"{keys.model.path} has no table token_embd.weight, so it is no language model; take another.")
    kinds = [entry.type.name for _, entry in keys.model.tensors.values() if len(entry.shape) > 1]
    metadata = keys.model.metadata
    return {
        "vocab_size": table[0],
        "hidden_size": keys.size("embedding_length"),
        "intermediate_size": _mlp_width(keys) if "feed_forward_length" in keys else None,
        "num_hidden_layers": keys.layers,
        "num_attention_heads": keys.one("attention.head_count"),
        "num_key_value_heads": _kv_heads(keys),
        "head_dim": keys.head_dim,
        "max_position_embeddings": keys.size("context_length"),
        "rms_norm_eps": keys.number("attention.layer_norm_rms_epsilon"),
        "tie_word_embeddings": not keys.has("output.weight"),
        "bos_token_id": metadata.token_id("tokenizer.ggml.bos_token_id"),
        "eos_token_id": _end_tokens(keys),
        "torch_dtype": max(set(kinds), key=kinds.count),
        "quantization_config": _quantization(keys),
    }


def _mlp_width(keys: Keys) -> int:
    """Return the width of the MLPs; of Gemma 4's first layer, than which later ones may be wider."""
    return keys.by_layer("feed_forward_length")[0] if keys.architecture == "gemma4" else keys.one("feed_forward_length")


def _kv_heads(keys: Keys) -> int:
    """Return KV heads of attention layers: LFM2's other layers have 0, and Gemma 4's full layers may differ."""
    if keys.architecture == "gemma4":
        return by_kind(keys, "attention.head_count_kv")[SLIDING]
    name = "attention.head_count_kv" if "attention.head_count_kv" in keys else "attention.head_count"
    return max(keys.by_layer(name)) if keys.architecture in ("lfm2", "lfm2moe") else keys.one(name)


def _quantization(keys: Keys) -> Config | None:
    """Summarize a file that mixes types: the bits of most elements of layers' matrices, and their mean bytes in this
    engine's memory; the same of the output projection, if that is quantized."""
    count = {4: 0, 8: 0, 16: 0}
    taken = 0.0
    for name, (_, entry) in keys.model.tensors.items():
        if name.startswith("blk.") and len(entry.shape) > 1:
            # Values of latent attention that are stored separately from its keys stay plain numbers.
            elements, held = math.prod(entry.shape), 2 if ".attn_v_b." in name else entry.type.held_bytes
            count[4 if held < 1 else 8 if held < 2 else 16] += elements
            taken += elements * held
    if not count[4] and not count[8]:
        return None
    bits = 4 if count[4] >= count[8] else 8
    _, head = keys.model.tensors["output.weight" if keys.has("output.weight") else "token_embd.weight"]
    return {
        "quant_method": "gguf",
        "bits": bits,
        "element_bytes": taken / sum(count.values()),
        "head_bytes": None if head.type.is_plain else float(head.type.held_bytes),
    }


def _end_tokens(keys: Keys) -> list[int]:
    metadata = keys.model.metadata
    named = [metadata.token_id(f"tokenizer.ggml.{one}_token_id") for one in ("eos", "eot", "eom")]
    kinds = metadata.int32s("tokenizer.ggml.token_type")[: metadata.length(_TOKENS)]
    special = itertools.compress(range(len(kinds)), map(_SPECIAL.__contains__, kinds))
    spelled = {metadata.text_of(_TOKENS, at): at for at in special}
    ends = {token: at for token, at in spelled.items() if token in _ENDS}
    if keys.architecture in ("glm4", "glm4moe") and "<|user|>" in spelled:  # which begins what others say
        ends["<|user|>"] = spelled["<|user|>"]
    if "<|return|>" in ends and "<|call|>" in ends:  # of Harmony, where <|end|> ends one message of an answer
        ends.pop("<|end|>", None)
    return sorted({*(one for one in named if one is not None), *ends.values()})
