"""A checkpoint under the names that most families share, in the row order that the backends compute in.

Knows how a family's checkpoints differ from that: parts of names (`Family.names`), several matrices stacked in one
tensor, rows of queries and keys whose rotated pairs stand side by side, and the prefix of a text part that lies beside
others. All of it is a choice of rows, so no number changes. Does not know files, nor what is made of a tensor.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from inflight.execution.backends.matrices import Matrix, rows_of
from inflight.execution.backends.protocol import Array
from inflight.models.spec import Attention, Dense, LayerSpec, ModelSpec, MoE

if TYPE_CHECKING:
    from inflight.execution.packer import TensorSource

_LAYER = re.compile(r"(model\.layers\.(\d+)\.)?(.+?)(\.weight|\.bias)?")
_ROTATED = tuple(f"self_attn.{part}" for part in ("q_proj", "k_proj", "q_norm", "k_norm"))
_TABLE = "embed_tokens.weight"
# Of a text part: prefix of the decoder, and of what stands beside it (the output projection).
_ROOTS = (("model.", ""), ("model.language_model.", ""), ("language_model.model.", "language_model."))


class _Place(NamedTuple):
    """Where a part lies: these rows, in this order, of the `total` of the tensor `name`."""

    name: str
    total: int
    rows: slice | Array


class FamilyTensors:
    """A source that answers the usual names."""

    def __init__(self, model: ModelSpec, source: TensorSource) -> None:
        self._model, self._source = model, source
        self._names = dict(model.names)
        self._root, self._beside = next((one for one in _ROOTS if one[0] + _TABLE in source), _ROOTS[0])
        self._stack: tuple[str, Matrix] | None = None  # whose rows were asked for last: decoding it takes long

    def __contains__(self, name: str) -> bool:
        return self._stored(name) in self._source

    def tensor(self, name: str, shape: Sequence[int]) -> Array:
        place = self._place(name, shape[0])
        part: Array = self._source.tensor(place.name, (place.total, *shape[1:]))[place.rows]
        return part

    def pieces(self, name: str, shape: tuple[int, int]) -> Iterable[Array]:
        """As of the source, of what is whole and in order there."""
        return self._source.pieces(self._stored(name), shape)

    def matrix(self, name: str, shape: tuple[int, int]) -> Matrix:
        place = self._place(name, shape[0])
        if self._stack is not None and self._stack[0] == place.name:
            return rows_of(self._stack[1], place.rows)
        whole = self._source.matrix(place.name, (place.total, shape[1]))
        self._stack = (place.name, whole) if place.total > shape[0] else None
        return rows_of(whole, place.rows)

    def release(self, name: str) -> None:
        stored = self._stored(name)
        if self._stack is not None and self._stack[0] == stored:
            self._stack = None
        self._source.release(stored)

    def _stored(self, name: str) -> str:
        """The name in the checkpoint."""
        layer, _, part, suffix = _parts(name)
        usual = layer + self._names.get(part, part) + suffix
        return self._root + usual.removeprefix("model.") if usual.startswith("model.") else self._beside + usual

    def _place(self, name: str, count: int) -> _Place:
        _, number, part, _ = _parts(name)
        first, total, order = 0, count, None
        if number is not None:
            layer = self._model.layers[number]
            stacked = [one for one, stored in self._names.items() if stored == self._names.get(part)]
            if len(stacked) > 1:
                rows = [_rows(layer, one) for one in stacked]
                first, total = sum(rows[: stacked.index(part)]), sum(rows)
            order = _order(layer, part, count)
        return _Place(self._stored(name), total, slice(first, first + count) if order is None else first + order)


def _parts(name: str) -> tuple[str, int | None, str, str]:
    """`model.layers.3.`, 3, `self_attn.q_proj`, `.weight`; outside of layers the first two are empty."""
    found = _LAYER.fullmatch(name)
    assert found is not None
    layer, number, part, suffix = found.groups(default="")
    return layer, int(number) if number else None, part, suffix


def _rows(layer: LayerSpec, part: str) -> int:
    """Outputs of a matrix that may be stacked with others."""
    if part.startswith("mlp.shared_experts."):
        assert isinstance(layer.mlp, MoE)
        return layer.mlp.shared_width
    if part.startswith("mlp."):
        assert isinstance(layer.mlp, Dense)
        return layer.mlp.width
    assert isinstance(layer.mixer, Attention)
    return (layer.mixer.heads if part.endswith("q_proj") else layer.mixer.kv_heads) * layer.mixer.head_dim


def _order(layer: LayerSpec, part: str, count: int) -> Array | None:
    """Of what is a number for each of queries or keys whose pairs stand side by side: by halves, head by head."""
    mixer = layer.mixer
    if part not in _ROTATED or not isinstance(mixer, Attention):
        return None
    if mixer.rope is None or not mixer.rope.interleaved:
        return None
    rotated = np.arange(mixer.rope.head_dim)
    head = np.concatenate([rotated[::2], rotated[1::2], np.arange(mixer.rope.head_dim, mixer.head_dim)])
    heads: Array = (np.arange(count // mixer.head_dim)[:, None] * mixer.head_dim + head).reshape(-1)
    return heads
