"""Read the fields of one config.json by kind and with bounds, and refuse those that change a family's arithmetic."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from inflight.json_file import shown
from inflight.models.errors import ModelError
from inflight.models.rope import MAX_POSITIONS

# Far above any model there is: what passes them would be looked for in memory before anything else refuses it.
_MAX_VALUES = {
    "vocab_size": 2**24,
    "hidden_size": 2**20,
    "intermediate_size": 2**22,
    "num_hidden_layers": 4096,
    "num_attention_heads": 2**14,
    "num_key_value_heads": 2**14,
    "head_dim": 2**14,
    "max_position_embeddings": MAX_POSITIONS,
    "sliding_window": 2**31 - 1,
}
_MAX_ELSE = 2**22
_MAX_END_TOKENS = 4096
# What changes the arithmetic wherever it is set, with its meaning. A family names those that it reads; any other one
# that is set makes the model something else than its family, and is refused. 0, 1, false, null and [] change nothing.
_CHANGES = {
    "is_encoder_decoder": "an encoder",
    "kv_lora_rank": "multi-head latent attention",
    "mlp_only_layers": "only some of the layers have experts",
    "first_k_dense_replace": "only some of the layers have experts",
    "decoder_sparse_step": "only some of the layers have experts",
    "num_experts": "a mixture of experts",
    "num_local_experts": "a mixture of experts",
    "n_routed_experts": "a mixture of experts",
    "moe_num_experts": "a mixture of experts",
    "linear_num_value_heads": "linear attention",
    "mamba_d_state": "Mamba layers",
    "attn_layer_period": "attention in some of the layers only",
    "conv_L_cache": "short convolutions",
    "attention_chunk_size": "attention in chunks",
    "no_rope_layers": "layers without rotation",
    "use_sliding_window": "windows that are switched on",
    "index_topk": "sparse attention",
    "attn_output_gate": "an output gate of attention",
    "attn_logit_softcapping": "soft caps",
    "final_logit_softcapping": "soft caps",
    "query_pre_attn_scalar": "another scale of attention",
    "embedding_multiplier": "scaled embeddings",
    "residual_multiplier": "scaled residuals",
    "attention_multiplier": "another scale of attention",
    "logits_scaling": "scaled logits",
    "logit_scale": "scaled logits",
    "hidden_size_per_layer_input": "embeddings of every layer",
    "num_kv_shared_layers": "layers that share keys and values",
    "attention_k_eq_v": "keys that are values, too",
    "enable_moe_block": "experts beside an MLP",
    "use_bidirectional_attention": "attention to later tokens",
    "qk_layernorm": "layer norms of queries and keys",
    "use_bias": "biases of all projections",
    "clip_qkv": "clipped queries, keys and values",
    "alibi": "positions as biases",
}


class Fields:
    """config.json of one model. defaults: those of the family's configuration class in `transformers`, for what is
    left out."""

    def __init__(self, data: Mapping[str, Any], defaults: Mapping[str, Any]) -> None:
        self._data, self._defaults = data, defaults

    def __contains__(self, key: str) -> bool:
        """Whether it is given, and not null."""
        return self._data.get(key) is not None

    def raw(self, key: str) -> Any:
        """Return a field as it is given; its default where it is left out."""
        return self._data[key] if key in self._data else self._defaults.get(key)

    @property
    def data(self) -> Mapping[str, Any]:
        """Everything as it is given, and the defaults of what is left out."""
        return {**self._defaults, **self._data}

    # -- sizes ------------------------------------------------------------------------------------------------------
    def size(self, key: str, fallback: int | None = None, least: int = 1) -> int:
        """Return an integer of at least `least` and at most the field's limit. Where the field is missing or null,
        return `fallback`, or the family's default. Raises ModelError."""
        value = self.raw(key)
        if value is None:
            value = self._defaults.get(key) if fallback is None else fallback
        if value is None:
            raise ModelError(f"config.json lacks {key}, without which the model's shape is unknown.")
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            bound = f"above {least - 1}" if least else "of at least 0"
            raise ModelError(f"{key} in config.json must be a whole number {bound}, not {shown(value)}.")
        most = _MAX_VALUES.get(key, _MAX_ELSE)
        if value > most:
            raise ModelError(f"{key} in config.json is {shown(value)}, more than any model has (at most {most:,}).")
        return value

    def count(self, key: str) -> int:
        """Return an integer of at least 0; 0 where the field is missing."""
        return self.size(key, 0, least=0)

    @property
    def layers(self) -> int:
        return self.size("num_hidden_layers")

    @property
    def window(self) -> int:
        """Tokens: `sliding_window`, 0 where it is null."""
        return 0 if self.raw("sliding_window") is None else self.size("sliding_window")

    # -- other kinds ------------------------------------------------------------------------------------------------
    def flag(self, key: str) -> bool:
        return bool(self.raw(key))

    def number(self, key: str, default: float = 1.0) -> float:
        """Return a finite number above 0. Raises ModelError."""
        value = self.raw(key)
        if value is None:
            return default
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 2**63:
            raise ModelError(f"{key} in config.json must be a number above 0, not {shown(value)}.")
        return float(value)

    def optional(self, key: str) -> float:
        """Return a finite number above 0; 0 where the field is missing or null. Raises ModelError."""
        return 0.0 if self.raw(key) is None else self.number(key)

    def small(self, key: str, default: float) -> float:
        """Return a norm's epsilon, from 0 to below 1. Raises ModelError."""
        value = self.raw(key) if key in self._data or key in self._defaults else default
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1:
            raise ModelError(f"{key} in config.json must be a small number, not {shown(value)}.")
        return float(value)

    def text(self, key: str, default: str) -> str:
        value = self.raw(key)
        if value is None:
            return default
        if not isinstance(value, str) or len(value) > 200:
            raise ModelError(f"{key} in config.json must be a name, not {shown(value)}.")
        return value

    def layer_numbers(self, key: str) -> frozenset[int] | None:
        """Numbers of layers, from 0; None where the field is not given."""
        value = self.raw(key)
        if value is None:
            return None
        if not isinstance(value, list) or any(isinstance(one, bool) or not isinstance(one, int) for one in value):
            raise ModelError(f"{key} in config.json must be a list of layers' numbers, not {shown(value)}.")
        return frozenset(value)

    def layer_types(self, known: Iterable[str]) -> list[str] | None:
        """Return the type of each layer, one of `known`; None where the field is not given."""
        types = self.raw("layer_types")
        if types is None:
            return None
        if not (isinstance(types, list) and all(isinstance(kind, str) for kind in types)):
            raise ModelError(f"layer_types in config.json must be a list of names, not {shown(types)}.")
        if len(types) != self.layers:
            raise ModelError(f"layer_types names {len(types)} layers, but num_hidden_layers is {self.layers}.")
        unknown = set(types) - set(known)
        if unknown:
            raise ModelError(f"layer_types asks for {min(unknown)[:100]}, which is not supported.")
        return types

    def token_ids(self, key: str) -> tuple[int, ...]:
        """Return the token ids of a field that holds one, several, or none."""
        value = self.raw(key)
        values = value if isinstance(value, list) else [] if value is None else [value]
        if any(isinstance(item, bool) or not isinstance(item, int) for item in values):
            raise ModelError(f"{key} must be a token id or a list of them, not {shown(value)}.")
        if len(values) > _MAX_END_TOKENS or any(abs(item) >= 2**31 for item in values):
            raise ModelError(f"{key} holds {shown(value)}: that many, or such large, token ids no model has.")
        return tuple(dict.fromkeys(values))

    @property
    def dtype(self) -> str | None:
        name = self.raw("dtype") or self.raw("torch_dtype")
        return name.removeprefix("torch.")[:40] if isinstance(name, str) and name else None

    # -- what is not understood -------------------------------------------------------------------------------------
    def refuse_changes(self, family: str, understood: frozenset[str]) -> None:
        """Raise ModelError for a field that changes the family's arithmetic."""
        for key, meaning in _CHANGES.items():
            value = self._data.get(key)
            if key in understood or (value in (None, 0, 1, False, []) and value is not True):
                continue
            raise ModelError(
                f"{key} is set ({shown(value)}): {meaning}, which the family {family} is not known to have; take the "
                "config.json that belongs to the model, or another model."
            )
