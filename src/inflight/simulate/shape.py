"""The shape of a model: the sizes that its memory and its step time follow from, for any decoder-only transformer.

Knows config.json's size fields and a table of well-known models; no weights, no tokenizer, no rope. It is not the
engine's own reader on purpose: that one refuses whatever the engine cannot run (experts, quantized checkpoints), and
those are what people want to size; and the simulator may not import execution.
"""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from inflight.json_file import JsonFileError, read_json_object

Precision = Literal["bf16", "fp8", "int8"]
ITEM_BYTES: dict[Precision, int] = {"bf16": 2, "fp8": 1, "int8": 1}


class ShapeError(ValueError):
    """A model's shape is not known; the sentence says what is, and how to give it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelShape:
    """Counts of elements. ffn: width of one MLP (of one expert, where there are experts). mlp_matrices: 3 of a gated
    MLP, 2 of a plain one. experts 0: a dense model. shared_ffn: width of the MLP that every token passes beside its
    experts. tied: one table for input and output. max_positions: the longest sequence, in tokens."""

    name: str
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    ffn: int
    vocab: int
    tied: bool = False
    experts: int = 0
    experts_per_token: int = 0
    shared_ffn: int = 0
    max_positions: int = 8192
    mlp_matrices: int = 3

    @property
    def attention_parameters(self) -> int:
        """Of one layer's projections, d(H + 2K)h + Hhd. Never 4d²: Hh differs from d in several models."""
        queries = self.heads * self.head_dim
        return self.hidden * (queries + 2 * self.kv_heads * self.head_dim) + queries * self.hidden

    def mlp_parameters(self, experts: float) -> float:
        """Of one layer's MLP, 3dF where it is gated (else 2dF), times the experts that are meant; a router and a shared
        expert beside them."""
        each = self.mlp_matrices * self.hidden
        if not self.experts:
            return each * self.ffn
        return experts * each * self.ffn + self.hidden * self.experts + each * self.shared_ffn

    def touched_experts(self, tokens: float) -> float:
        """Distinct experts of a layer that `tokens` tokens use, E(1 - (1 - k/E)^T): tokens choose independently."""
        if not self.experts:
            return 0.0
        return self.experts * (1 - math.pow(1 - self.experts_per_token / self.experts, tokens))

    @property
    def layer_parameters(self) -> int:
        """All of one layer: matrices and the two norms."""
        return self.attention_parameters + round(self.mlp_parameters(self.experts)) + 2 * self.hidden

    @property
    def table_parameters(self) -> int:
        """Of one embedding table, V·d."""
        return self.vocab * self.hidden

    @property
    def parameters(self) -> int:
        """All weights; a tied table counts once. Biases and per-head norms (below 0.1 %) are left out."""
        tables = self.table_parameters * (1 if self.tied else 2)
        return self.layers * self.layer_parameters + self.hidden + tables

    @property
    def active_parameters(self) -> int:
        """Those that one token passes: of the experts only its own."""
        unused = self.experts - self.experts_per_token if self.experts else 0
        return self.parameters - self.layers * unused * self.mlp_matrices * self.hidden * self.ffn

    def weight_bytes(self, precision: Precision = "bf16") -> int:
        """Of all weights. Quantized checkpoints keep tables and head in bf16, and so does this."""
        tables = self.table_parameters * (1 if self.tied else 2)
        return (self.parameters - tables) * ITEM_BYTES[precision] + tables * ITEM_BYTES["bf16"]

    def kv_bytes_per_token(self, precision: Precision = "bf16") -> int:
        """Keys and values of one token over all layers, 2·L·K·h·b: of KV heads, not of query heads."""
        return 2 * self.layers * self.kv_heads * self.head_dim * ITEM_BYTES[precision]

    def kv_heads_per_gpu(self, tensor_parallel: int) -> int:
        """Where there are more GPUs than KV heads, each GPU holds a copy of one."""
        return max(1, self.kv_heads // tensor_parallel)


def _known(name: str, *sizes: int, tied: bool = False, longest: int = 8192, experts: tuple[int, int] = (0, 0)) -> Any:
    layers, hidden, heads, kv_heads, head_dim, ffn, vocab = sizes
    return ModelShape(
        name=name,
        layers=layers,
        hidden=hidden,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        ffn=ffn,
        vocab=vocab,
        tied=tied,
        experts=experts[0],
        experts_per_token=experts[1],
        max_positions=longest,
    )


# Sizes as in the models' published config.json; their parameter counts come out as published (tests compare them).
KNOWN: dict[str, ModelShape] = {
    shape.name: shape
    for shape in (
        _known("llama-3-8b", 32, 4096, 32, 8, 128, 14336, 128256),
        _known("llama-3-70b", 80, 8192, 64, 8, 128, 28672, 128256),
        _known("llama-3.1-8b", 32, 4096, 32, 8, 128, 14336, 128256, longest=131072),
        _known("llama-3.1-70b", 80, 8192, 64, 8, 128, 28672, 128256, longest=131072),
        _known("llama-2-7b", 32, 4096, 32, 32, 128, 11008, 32000, longest=4096),
        _known("llama-2-70b", 80, 8192, 64, 8, 128, 28672, 32000, longest=4096),
        _known("qwen2.5-0.5b", 24, 896, 14, 2, 64, 4864, 151936, tied=True, longest=32768),
        _known("qwen2.5-7b", 28, 3584, 28, 4, 128, 18944, 152064, longest=32768),
        _known("qwen2.5-72b", 80, 8192, 64, 8, 128, 29568, 152064, longest=32768),
        _known("qwen3-0.6b", 28, 1024, 16, 8, 128, 3072, 151936, tied=True, longest=40960),
        _known("qwen3-8b", 36, 4096, 32, 8, 128, 12288, 151936, longest=40960),
        _known("qwen3-14b", 40, 5120, 40, 8, 128, 17408, 151936, longest=40960),
        _known("qwen3-32b", 64, 5120, 64, 8, 128, 25600, 151936, longest=40960),
        _known("mistral-7b", 32, 4096, 32, 8, 128, 14336, 32000, longest=32768),
        _known("mixtral-8x7b", 32, 4096, 32, 8, 128, 14336, 32000, longest=32768, experts=(8, 2)),
    )
}
# Of model types: whose MLP has no gate, and who share one table where config.json does not say.
PLAIN_MLP = frozenset(("gpt_neox", "nemotron", "persimmon", "phi", "starcoder2"))
TIED = frozenset(("cohere", "cohere2", "gemma", "gemma2", "gemma3", "gemma3_text", "starcoder2"))
_SUFFIXES = re.compile(r"(-(instruct|chat|hf|it|base|v0\.\d|\d{4}))+$")


def read_shape(model: str) -> ModelShape:
    """A well-known name (`llama-3-70b`; hub ids of these models too), a folder with a config.json, or such a file.

    Raises ShapeError.
    """
    path = Path(model)
    if path.is_dir() or path.suffix == ".json":
        return _read_file(path / "config.json" if path.is_dir() else path)
    name = model.lower().rpartition("/")[2].removeprefix("meta-")
    name = _SUFFIXES.sub("", name)
    if name in KNOWN:
        return KNOWN[name]
    near = difflib.get_close_matches(name, KNOWN, 1)
    hint = f" Did you mean {near[0]}?" if near else ""
    raise ShapeError(
        f"The shape of the model {model!r} is not known; known are {', '.join(KNOWN)}.{hint} For any other model give "
        "its folder, or its config.json."
    )


def _read_file(path: Path) -> ModelShape:
    try:
        data = read_json_object(path)
    except JsonFileError as error:
        raise ShapeError(str(error)) from None
    except FileNotFoundError:
        raise ShapeError(f"{path} does not exist; give a model's folder or its config.json.") from None
    try:
        return replace(shape_from_config(data), name=path.parent.name or str(path))
    except ShapeError as error:
        raise ShapeError(f"{path}: {error}") from None


def shape_from_config(data: Mapping[str, Any]) -> ModelShape:
    """The shape in the content of a config.json (of its text part, where a model sees images too)."""
    nested = data.get("text_config")
    if isinstance(nested, Mapping):
        data = nested
    if data.get("kv_lora_rank"):
        raise ShapeError(
            "kv_lora_rank is set: keys and values are kept compressed (multi-head latent attention), which the "
            "formulas here do not cover; give a model with grouped-query attention."
        )
    if data.get("mlp_only_layers") or data.get("first_k_dense_replace") or data.get("decoder_sparse_step", 1) != 1:
        raise ShapeError("only some of the layers have experts, which the formulas here do not cover.")
    if data.get("is_encoder_decoder"):
        raise ShapeError("is_encoder_decoder is set; the formulas here are those of decoder-only models.")
    kind = str(data.get("model_type") or "model")
    heads, hidden = _size(data, "num_attention_heads"), _size(data, "hidden_size")
    experts = _size(data, "num_local_experts", _size(data, "num_experts", 0))
    ffn = _size(data, "moe_intermediate_size", 0) if experts else 0
    per_token = _size(data, "num_experts_per_tok") if experts else 0
    if per_token > experts:
        raise ShapeError(f"num_experts_per_tok is {per_token}, but there are {experts} experts.")
    kv_heads = _size(data, "num_key_value_heads", heads)
    if heads % kv_heads:
        raise ShapeError(f"num_attention_heads is {heads}, no multiple of num_key_value_heads, which is {kv_heads}.")
    return ModelShape(
        name=str(data.get("_name_or_path") or kind),
        layers=_size(data, "num_hidden_layers"),
        hidden=hidden,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=_size(data, "head_dim", hidden // heads),
        ffn=ffn or _size(data, "intermediate_size"),
        vocab=_size(data, "vocab_size"),
        tied=bool(data.get("tie_word_embeddings", kind in TIED)),
        experts=experts,
        experts_per_token=per_token,
        shared_ffn=_size(data, "shared_expert_intermediate_size", 0),
        max_positions=_size(data, "max_position_embeddings", 8192),
        mlp_matrices=2 if kind in PLAIN_MLP else 3,
    )


def _size(data: Mapping[str, Any], key: str, default: int | None = None) -> int:
    """A whole number; `default` where the key is absent or null."""
    value = data.get(key)
    if value is None:
        if default is None:
            raise ShapeError(f"config.json lacks {key}, without which the model's shape is unknown.")
        return default
    if isinstance(value, bool) or not isinstance(value, int) or value < (0 if default == 0 else 1):
        raise ShapeError(f"{key} in config.json is {value!r}; it must be a whole number above 0.")
    return value
