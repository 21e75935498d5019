"""What a model is: its family, sizes and peculiarities, read from a Hugging Face `config.json`.

Knows which families one decoder covers (Llama, Mistral, Qwen2, Qwen3), how each writes its windows, biases and norms,
and the arithmetic that follows from sizes: parameters, bytes, operations. Does not know where weights lie, how they
are packed, or how rotary frequencies are computed (`rope`).

Where config.json leaves a field out, the default of the family's configuration class in `transformers` counts; sizes
that have no sensible default must be there.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from inflight.execution.errors import ModelError
from inflight.execution.ops.protocol import DType, Quantization
from inflight.execution.rope import MOST_POSITIONS, RopeSettings
from inflight.json_file import JsonFileError, read_json_object, shown


@dataclass(frozen=True, slots=True)
class _Family:
    """Where the families differ. The two bias fields hold the answer, or None where `attention_bias` decides."""

    name: str
    qkv_bias: bool | None
    output_bias: bool | None
    qk_norm: bool
    head_dim: int | None  # None: hidden_size / heads
    kv_heads: int | None  # None: as many as query heads
    max_positions: int


_FAMILIES = {
    "llama": _Family("llama", None, None, False, None, None, 2048),
    "mistral": _Family("mistral", False, False, False, None, 8, 131_072),
    "qwen2": _Family("qwen2", True, False, False, None, 32, 32_768),
    "qwen3": _Family("qwen3", None, None, True, 128, 32, 32_768),
}
_ARCHITECTURES = {
    "LlamaForCausalLM": "llama",
    "MistralForCausalLM": "mistral",
    "Qwen2ForCausalLM": "qwen2",
    "Qwen3ForCausalLM": "qwen3",
}
_SUPPORTED = "Supported are " + ", ".join(_ARCHITECTURES) + "."
# Far above any model there is: what passes them would be looked for in memory before anything else refuses it.
_MOST = {
    "vocab_size": 2**24,
    "hidden_size": 2**20,
    "intermediate_size": 2**22,
    "num_hidden_layers": 4096,
    "num_attention_heads": 2**14,
    "num_key_value_heads": 2**14,
    "head_dim": 2**14,
    "max_position_embeddings": MOST_POSITIONS,
    "sliding_window": 2**31 - 1,
}
_MOST_END_TOKENS = 4096
_ITEM_BYTES: dict[DType, int] = {"bfloat16": 2, "float32": 4}


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """One decoder-only model. Sizes are counts of elements; `windows` has one entry per layer, 0 for no window."""

    family: str
    vocab_size: int
    hidden_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    intermediate_size: int
    rms_norm_eps: float
    tie_word_embeddings: bool
    max_position_embeddings: int
    windows: tuple[int, ...]  # tokens that a layer's queries look back over, themselves included
    qkv_bias: bool
    output_bias: bool
    qk_norm: bool
    rope: RopeSettings
    end_token_ids: tuple[int, ...]
    bos_token_id: int | None
    checkpoint_dtype: str | None  # as config.json names it, e.g. "bfloat16"; None where it does not say

    # -- reading ----------------------------------------------------------------------------------------------------
    @classmethod
    def from_folder(cls, folder: str | Path) -> ModelConfig:
        """Reads config.json and, where there is one, generation_config.json. Raises ModelError."""
        folder = Path(folder)
        path = folder / "config.json"
        if not path.is_file():
            raise ModelError(
                f"{folder} is no model folder: it has no config.json ({_contents(folder)}). "
                "Give a folder in Hugging Face format, or a hub id such as Qwen/Qwen2.5-0.5B-Instruct."
            )
        generation = folder / "generation_config.json"
        return cls.from_dict(read_json(path), read_json(generation) if generation.is_file() else None)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any], generation: Mapping[str, Any] | None = None) -> ModelConfig:
        """Reads the content of config.json; `generation` is that of generation_config.json, whose end tokens go first.

        Raises ModelError for what the decoder cannot do: another architecture or activation, experts, quantized
        weights, MLP biases, an unknown rope type; and for sizes that are missing or do not fit together.
        """
        family = _family(data)
        _refuse_the_unsupported(data)
        heads = _size(data, "num_attention_heads")
        kv_heads = _size(data, "num_key_value_heads", family.kv_heads or heads, when_null=heads)
        hidden = _size(data, "hidden_size")
        layers = _size(data, "num_hidden_layers")
        head_dim = _size(data, "head_dim", family.head_dim or hidden // heads, when_null=hidden // heads)
        length = _size(data, "max_position_embeddings", family.max_positions)
        _check_heads(hidden, heads, kv_heads, head_dim)
        attention_bias = bool(data.get("attention_bias", False))
        ends = _token_ids(generation or {}, "eos_token_id") or _token_ids(data, "eos_token_id")
        begins = _token_ids(data, "bos_token_id") or _token_ids(generation or {}, "bos_token_id")
        eps = data.get("rms_norm_eps", 1e-6)
        if isinstance(eps, bool) or not isinstance(eps, int | float) or not 0 <= eps < 1:
            raise ModelError(f"rms_norm_eps in config.json must be a small number, not {shown(eps)}.")
        return cls(
            family=family.name,
            vocab_size=_size(data, "vocab_size"),
            hidden_size=hidden,
            num_layers=layers,
            num_heads=heads,
            num_kv_heads=kv_heads,
            head_dim=head_dim,
            intermediate_size=_size(data, "intermediate_size"),
            rms_norm_eps=float(eps),
            tie_word_embeddings=bool(data.get("tie_word_embeddings", False)),
            max_position_embeddings=length,
            windows=_windows(data, family.name, layers),
            qkv_bias=attention_bias if family.qkv_bias is None else family.qkv_bias,
            output_bias=attention_bias if family.output_bias is None else family.output_bias,
            qk_norm=family.qk_norm,
            rope=RopeSettings.from_dict(data, head_dim, length),
            end_token_ids=ends,
            bos_token_id=begins[0] if begins else None,
            checkpoint_dtype=_dtype_name(data),
        )

    # -- lengths ----------------------------------------------------------------------------------------------------
    @property
    def longest_model_len(self) -> int:
        """Tokens: the largest max_model_len that makes sense. Beyond `max_position_embeddings` where rope stretches."""
        return self.rope.longest

    @property
    def default_model_len(self) -> int:
        """Tokens: max_model_len when nobody says otherwise.

        `dynamic` rope stays at the length that the model was trained for: its frequencies are fixed for the configured
        maximum, so a larger one changes every answer and must be asked for.
        """
        return self.max_position_embeddings if self.rope.kind == "dynamic" else self.rope.longest

    # -- arithmetic -------------------------------------------------------------------------------------------------
    @property
    def qkv_rows(self) -> int:
        """Rows of the stacked query, key and value projection."""
        return (self.num_heads + 2 * self.num_kv_heads) * self.head_dim

    @property
    def table_parameters(self) -> int:
        """Elements of one embedding table [vocab_size, hidden_size]."""
        return self.vocab_size * self.hidden_size

    @property
    def layer_matrix_parameters(self) -> int:
        """Elements of the weight matrices of one layer."""
        attention = self.hidden_size * (self.qkv_rows + self.num_heads * self.head_dim)
        return attention + 3 * self.hidden_size * self.intermediate_size

    @property
    def layer_vector_parameters(self) -> int:
        """Elements of the norms and biases of one layer; they are held in float32 whatever the weights are held in."""
        norms = 2 * self.hidden_size + (2 * self.head_dim if self.qk_norm else 0)
        return norms + (self.qkv_rows if self.qkv_bias else 0) + (self.hidden_size if self.output_bias else 0)

    @property
    def parameters(self) -> int:
        """Elements of all weights; a tied table counts once."""
        layers = self.num_layers * (self.layer_matrix_parameters + self.layer_vector_parameters)
        return layers + self.hidden_size + self.table_parameters * (1 if self.tie_word_embeddings else 2)

    def weight_bytes(self, dtype: DType, quantization: Quantization = "none") -> int:
        """Bytes of all weights held in `dtype`, or some of them in int8, but for what an op set adds in padding."""
        return self.step_weight_bytes(dtype, quantization) + (
            0 if self.tie_word_embeddings else self.table_parameters * _ITEM_BYTES[dtype]
        )

    def step_weight_bytes(self, dtype: DType, quantization: Quantization = "none") -> int:
        """Bytes of weights that a decode step reads at least once: all but the input table, of which it reads rows."""
        vectors = self.num_layers * self.layer_vector_parameters + self.hidden_size
        layers = self.num_layers * self.layer_matrix_parameters * _ITEM_BYTES[dtype]
        if quantization != "none":
            outputs = self.qkv_rows + 2 * self.intermediate_size + 2 * self.hidden_size
            layers = self.num_layers * (self.layer_matrix_parameters + 4 * outputs)  # a float32 scale for each
        logits = self.table_parameters * _ITEM_BYTES[dtype]
        if quantization == "int8-all":
            logits = self.table_parameters + 4 * self.vocab_size
        return layers + logits + vectors * 4

    def kv_bytes_per_token(self, dtype: DType, quantized: bool = False) -> int:
        """Bytes of keys and values of one token over all layers; quantized: in int8, a float32 scale for each head."""
        head = self.head_dim + 4 if quantized else self.head_dim * _ITEM_BYTES[dtype]
        return 2 * self.num_layers * self.num_kv_heads * head

    @property
    def layer_flops_per_token(self) -> int:
        """Operations (a multiply-add counts two) of the layers' matrices for one token."""
        return 2 * self.num_layers * self.layer_matrix_parameters

    @property
    def logit_flops_per_token(self) -> int:
        """Operations of the output projection for one token that is sampled or scored."""
        return 2 * self.table_parameters

    def attention_flops_per_token(self, context: int) -> int:
        """Operations of attention over all layers for one token that sees `context` tokens."""
        seen = sum(min(context, window) if window else context for window in self.windows)
        return 4 * self.num_heads * self.head_dim * seen


def read_json(path: Path) -> dict[str, Any]:
    """The object in a JSON file of a model. Raises ModelError where it is unreadable, broken, or something else."""
    try:
        return read_json_object(path)
    except (JsonFileError, FileNotFoundError) as error:
        raise ModelError(str(error)) from None


def _contents(folder: Path) -> str:
    if not folder.exists():
        return "it does not exist"
    if not folder.is_dir():
        return "it is a file"
    names = sorted(entry.name for entry in folder.iterdir())
    if not names:
        return "it is empty"
    return "it holds " + ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")


def _family(data: Mapping[str, Any]) -> _Family:
    architectures = data.get("architectures") or []
    if not isinstance(architectures, list):
        raise ModelError(f"architectures in config.json must be a list of names, not {shown(architectures)}.")
    named = architectures[0] if architectures else None
    family = _ARCHITECTURES.get(str(named)) if named else data.get("model_type")
    if isinstance(family, str) and family in _FAMILIES:
        return _FAMILIES[family]
    asked = named or data.get("model_type")
    if not asked:
        raise ModelError(f"config.json names neither architectures nor model_type: it is no model's. {_SUPPORTED}")
    if not isinstance(asked, str) or len(asked) > 200:
        raise ModelError(f"config.json names {shown(asked)} as its architecture, which is no name. {_SUPPORTED}")
    experts = "num_experts" in data or "num_local_experts" in data or "moe" in str(asked).lower()
    kind = "a mixture of experts, which is" if experts else "an architecture that is"
    raise ModelError(f"{asked} is {kind} not supported. {_SUPPORTED}")


def _refuse_the_unsupported(data: Mapping[str, Any]) -> None:
    """What would load without complaint and answer nonsense."""
    quantization = data.get("quantization_config") or data.get("compression_config")
    if quantization:
        method = quantization.get("quant_method") if isinstance(quantization, Mapping) else None
        told = method if isinstance(method, str) and len(method) < 40 else "quantization_config is set"
        raise ModelError(
            f"the checkpoint is quantized ({told}), which is not supported; "
            "take the unquantized one (bfloat16, float16 or float32 weights)."
        )
    activation = data.get("hidden_act", "silu")
    if activation not in ("silu", "swish"):
        raise ModelError(f"hidden_act {shown(activation)} is not supported; the gated MLP of this decoder uses 'silu'.")
    if data.get("mlp_bias"):
        raise ModelError("mlp_bias is true, but the gated MLP of this decoder has no biases; take another checkpoint.")


def _size(data: Mapping[str, Any], key: str, default: int | None = None, when_null: int | None = None) -> int:
    """A whole number above 0, as large as a model's may be; `default` where the key is absent, `when_null` (else
    `default`) where it is null."""
    value = data.get(key, default)
    if value is None:
        value = default if when_null is None else when_null
    if value is None:
        raise ModelError(f"config.json lacks {key}, without which the model's shape is unknown.")
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ModelError(f"{key} in config.json must be a whole number above 0, not {shown(value)}.")
    if value > _MOST[key]:
        raise ModelError(f"{key} in config.json is {shown(value)}, more than any model has (at most {_MOST[key]:,}).")
    return value


def _check_heads(hidden: int, heads: int, kv_heads: int, head_dim: int) -> None:
    if heads % kv_heads:
        raise ModelError(
            f"num_attention_heads ({heads}) must be a multiple of num_key_value_heads ({kv_heads}), so that each key "
            "head serves as many query heads."
        )
    if head_dim % 2:
        raise ModelError(
            f"the head dimension must be even to be rotated in pairs, but it is {head_dim} "
            f"(hidden_size {hidden}, num_attention_heads {heads})."
        )


def _windows(data: Mapping[str, Any], family: str, layers: int) -> tuple[int, ...]:
    """Window of each layer in tokens, 0 for none."""
    if family == "llama":
        return (0,) * layers
    window = _window_size(data)
    types = _layer_types(data)
    if family == "mistral":
        if types and len(set(types)) > 1:
            raise ModelError("layer_types mixes kinds of attention, which MistralForCausalLM does not have.")
        return (window,) * layers
    if not data.get("use_sliding_window", False):
        window = 0
    if types is None:
        first = data.get("max_window_layers", 28) if window else 0
        if isinstance(first, bool) or not isinstance(first, int):
            raise ModelError(f"max_window_layers in config.json must be a whole number, not {shown(first)}.")
        return tuple(window if layer >= first else 0 for layer in range(layers))
    if len(types) != layers:
        raise ModelError(f"layer_types names {len(types)} layers, but num_hidden_layers is {layers}.")
    unknown = set(types) - {"full_attention", "sliding_attention"}
    if unknown:
        raise ModelError(f"layer_types asks for {min(unknown)[:100]}, which is not supported.")
    if "sliding_attention" in types and not window:
        raise ModelError("layer_types asks for sliding_attention, but use_sliding_window or sliding_window is not set.")
    return tuple(window if kind == "sliding_attention" else 0 for kind in types)


def _layer_types(data: Mapping[str, Any]) -> list[str] | None:
    types = data.get("layer_types")
    if types is not None and not (isinstance(types, list) and all(isinstance(kind, str) for kind in types)):
        raise ModelError(f"layer_types in config.json must be a list of names, not {shown(types)}.")
    return types


def _window_size(data: Mapping[str, Any]) -> int:
    """`sliding_window`: null means none, and the families' own default is 4096."""
    if "sliding_window" in data and data["sliding_window"] is None:
        return 0
    return _size(data, "sliding_window", 4096)


def _token_ids(data: Mapping[str, Any], key: str) -> tuple[int, ...]:
    """One id, several, or none."""
    value = data.get(key)
    values = value if isinstance(value, list) else [] if value is None else [value]
    if any(isinstance(item, bool) or not isinstance(item, int) for item in values):
        raise ModelError(f"{key} must be a token id or a list of them, not {shown(value)}.")
    if len(values) > _MOST_END_TOKENS or any(abs(item) >= 2**31 for item in values):
        raise ModelError(f"{key} holds {shown(value)}: that many, or such large, token ids no model has.")
    return tuple(dict.fromkeys(values))


def _dtype_name(data: Mapping[str, Any]) -> str | None:
    name = data.get("dtype") or data.get("torch_dtype")
    return name.removeprefix("torch.")[:40] if isinstance(name, str) and name else None
