"""Kinds of layers in a GGUF file: with a window, or without.

Knows how files say which layer is which, and lists that say of each layer what each kind has.
"""

from __future__ import annotations

from inflight.json_file import shown
from inflight.models.errors import ModelError
from inflight.models.gguf.keys import Keys

SLIDING, FULL = "sliding_attention", "full_attention"


def layer_types(keys: Keys, period: int) -> list[str]:
    """By the file's list, where it has one; else each `period`-th layer sees all."""
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
