"""Read the keys that a GGUF file has of its own architecture: sizes, values of each layer, kinds of layers."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from inflight.json_file import shown
from inflight.models.errors import ModelError
from inflight.models.gguf.gguf_model import GGUFModel

# Of a config.json that says the same.
Json = bool | int | float | str | None | Sequence["Json"] | Mapping[str, "Json"]
Config = dict[str, Json]

_MAX_LAYERS = 4096
SLIDING, FULL = "sliding_attention", "full_attention"


class Keys:
    """Values of a model's own keys: `llama.block_count` is asked for as `block_count`."""

    def __init__(self, model: GGUFModel) -> None:
        self.model, self.architecture = model, model.architecture
        self._metadata = model.metadata

    def __contains__(self, key: str) -> bool:
        return f"{self.architecture}.{key}" in self._metadata

    def find(self, key: str) -> int | None:
        return self._metadata.integer(f"{self.architecture}.{key}")

    def size(self, key: str) -> int:
        """Return the key's integer. Raises ModelError where it is missing."""
        found = self.find(key)
        if found is None:
            raise self._lacks(key)
        return found

    def number(self, key: str) -> float | None:
        """Return a number: the file's 32 bits in the fewest digits that mean them (0.00001, not 0.0000099999997)."""
        found = self._metadata.number(f"{self.architecture}.{key}")
        return found if found is None or not math.isfinite(found) else float(f"{found:.7g}")

    def flag(self, key: str) -> bool | None:
        return self._metadata.flag(f"{self.architecture}.{key}")

    def text(self, key: str) -> str | None:
        return self._metadata.text(f"{self.architecture}.{key}")

    def by_layer(self, key: str) -> list[int]:
        """Return a value for each layer, whether the file gives one for all or a list. Raises ModelError."""
        layers = self.layers
        name = f"{self.architecture}.{key}"
        if not self._metadata.is_array(name):
            return [self.size(key)] * layers
        found = [int(one) for one in self._metadata.numbers(name)]
        if len(found) < layers:
            raise ModelError(f"{name} in {self.model.path} has {len(found)} values for {layers} layers.")
        return found[:layers]

    def one(self, key: str) -> int:
        """Return the value that all layers share. Raises ModelError where layers differ."""
        found = set(self.by_layer(key))
        if len(found) > 1:
            raise ModelError(
                f"{self.architecture}.{key} in {self.model.path} differs from layer to layer ({shown(sorted(found))}), "
                "which this family is not known to do; take another model."
            )
        return found.pop()

    @property
    def layers(self) -> int:
        """Without those that only predict further tokens, which no answer needs."""
        count = self.size("block_count") - (self.find("nextn_predict_layers") or 0)
        if not 1 <= count <= _MAX_LAYERS:
            raise ModelError(
                f"{self.architecture}.block_count in {self.model.path} makes {count:,} layers; from 1 to "
                f"{_MAX_LAYERS:,} make sense."
            )
        return count

    @property
    def head_dim(self) -> int:
        given = self.find("attention.key_length")
        return self.size("embedding_length") // max(1, self.one("attention.head_count")) if given is None else given

    def has(self, tensor: str) -> bool:
        return tensor in self.model.tensors

    def _lacks(self, key: str) -> ModelError:
        return ModelError(
            f"{self.model.path} lacks the key {self.architecture}.{key}, without which the model's shape is unknown; "
            "convert it again."
        )


def layer_types(keys: Keys, period: int) -> list[str]:
    """Return each layer's type, by the file's list where it has one; else each `period`-th layer sees all."""
    name = f"{keys.architecture}.attention.sliding_window_pattern"
    if keys.model.metadata.is_array(name):
        windows = [bool(one) for one in keys.by_layer("attention.sliding_window_pattern")]
    else:
        period = keys.find("attention.sliding_window_pattern") or period
        windows = [(layer + 1) % period != 0 for layer in range(keys.layers)]
    return [SLIDING if one else FULL for one in windows]


def by_kind(keys: Keys, key: str) -> dict[str, int]:
    """Return one value for layers with a window and one for full layers. Raises ModelError where a kind differs."""
    values, types = keys.by_layer(key), layer_types(keys, 6)
    found = {kind: {value for value, one in zip(values, types, strict=True) if one == kind} for kind in (SLIDING, FULL)}
    if any(len(one) > 1 for one in found.values()):
        raise ModelError(
            f"{keys.architecture}.{key} in {keys.model.path} differs among layers of one kind ({shown(values)}), which "
            "this family is not known to do; take another model."
        )
    return {kind: next(iter(one), values[0]) for kind, one in found.items()}
