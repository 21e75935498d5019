"""A checkpoint under the names that most families share, in the row order that the backends compute in.

Knows how a family's checkpoints differ from that: parts of names (`Family.names`), several matrices stacked in one
tensor, one after the other or head by head, rows of queries and keys whose rotated pairs stand side by side, and the
prefix of a text part that lies beside others. All of it is a choice of rows, so no number changes. Does not know files,
nor what is made of a tensor.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from inflight.execution.backends.matrices import Matrix, Rows, rows_of
from inflight.execution.backends.protocol import Array
from inflight.models.spec import Attention, Dense, LatentAttention, LayerSpec, LinearAttention, ModelSpec, MoE

if TYPE_CHECKING:
    from inflight.execution.packer import TensorSource

_LAYER = re.compile(r"(model\.layers\.(\d+)\.)?(.+?)(\.weight|\.bias)?")
_ROTATED = tuple(f"self_attn.{part}" for part in ("q_proj", "k_proj", "q_norm", "k_norm"))
_ROTATED_QUERIES, _ROTATED_KEY = ("self_attn.q_proj", "self_attn.q_b_proj"), "self_attn.kv_a_proj_with_mqa"
_BY_HEAD = frozenset(f"linear_attn.in_proj_{part}" for part in ("qkv", "z", "b", "a"))
_TABLE_PART = "embed_tokens"
# Of a text part: prefix of the decoder, and of what stands beside it (the output projection).
_ROOTS = (
    *(("model.", ""), ("model.language_model.", ""), ("language_model.model.", "language_model.")),
    ("", ""),  # of a model that was saved without a projection to logits
)
LAYERS = "model.layers"
_OLD_NORMS = {".weight": ".gamma", ".bias": ".beta"}  # as TensorFlow had them


class _Place(NamedTuple):
    """Where a part lies: these rows, in this order, of the `total` of the tensor `name`."""

    name: str
    total: int
    rows: slice | Array


class FamilyTensors:
    """A source that answers the usual names."""

    def __init__(self, model: ModelSpec, source: TensorSource, shown_by: str | None = None) -> None:
        """shown_by: the name, behind a root, whose being there shows which root the names have; None: the embedding
        table's."""
        self._model, self._source = model, source
        self._names = dict(model.names)
        stored = list(self._names.values())
        self._stacked = frozenset(part for part, name in self._names.items() if stored.count(name) > 1)
        roots = tuple((root, "") for root in model.roots) or _ROOTS
        table = self._names.get(f"model.{_TABLE_PART}", f"model.{_TABLE_PART}").removeprefix("model.") + ".weight"
        shown_by = table if shown_by is None else shown_by
        self._root, self._beside = next((one for one in roots if one[0] + shown_by in source), roots[0])
        self._stack: tuple[str, Matrix] | None = None  # whose rows were asked for last: decoding it takes long

    def __contains__(self, name: str) -> bool:
        return self.stored(name) in self._source

    def tensor(self, name: str, shape: Sequence[int]) -> Array:
        place = self._place(name, shape[0])
        part: Array = self._source.tensor(place.name, (place.total, *shape[1:]))[place.rows]
        return part

    def pieces(self, name: str, shape: tuple[int, int]) -> Iterable[Rows]:
        """As of the source, of what is whole and in order there."""
        return self._source.pieces(self.stored(name), shape)

    def matrix(self, name: str, shape: tuple[int, int]) -> Matrix:
        place = self._place(name, shape[0])
        if self._stack is not None and self._stack[0] == place.name:
            return rows_of(self._stack[1], place.rows)
        whole = self._source.matrix(place.name, (place.total, shape[1]))
        self._stack = (place.name, whole) if place.total > shape[0] else None
        return rows_of(whole, place.rows)

    def release(self, name: str) -> None:
        stored = self.stored(name)
        if self._stack is not None and self._stack[0] == stored:
            self._stack = None
        self._source.release(stored)

    def stored(self, name: str) -> str:
        """Return the name in the checkpoint."""
        layer, _, part, suffix = _parts(name)
        if layer:
            layer = self._names.get(LAYERS, LAYERS) + layer.removeprefix(LAYERS)
        named = self._rooted(layer + self._names.get(part, part) + suffix)
        if "norm" in named.lower():
            old = named.removesuffix(suffix) + _OLD_NORMS.get(suffix, suffix)
            if named not in self._source and old in self._source:
                return old
        # A matrix that a family stacks may be stored separately in another form of its checkpoints.
        separate = self._rooted(layer + part + suffix)
        may_be = part in _BY_HEAD or part in self._stacked
        return separate if may_be and named not in self._source and separate in self._source else named

    def _rooted(self, usual: str) -> str:
        return self._root + usual.removeprefix("model.") if usual.startswith("model.") else self._beside + usual

    def _place(self, name: str, count: int) -> _Place:
        prefix, number, part, suffix = _parts(name)
        first, total, order = 0, count, None
        if number is not None:
            layer = self._model.layers[number]
            by_head = _by_head(layer, part)
            if by_head is not None and self.stored(name) == self._rooted(prefix + by_head.tensor + suffix):
                return _Place(self.stored(name), by_head.total, by_head.rows)
            stacked = [one for one, stored in self._names.items() if stored == self._names.get(part)]
            is_separate = part in self._stacked and self.stored(name) == self._rooted(prefix + part + suffix)
            if len(stacked) > 1 and by_head is None and not is_separate:
                rows = [_rows(layer, one) for one in stacked]
                first, total = sum(rows[: stacked.index(part)]), sum(rows)
            order = _order(layer, part, count)
        return _Place(self.stored(name), total, slice(first, first + count) if order is None else first + order)


@lru_cache(maxsize=64)  # of the tensors that are at hand
def _parts(name: str) -> tuple[str, int | None, str, str]:
    """`model.layers.3.`, 3, `self_attn.q_proj`, `.weight`; outside of layers the first two are empty."""
    found = _LAYER.fullmatch(name)
    assert found is not None
    layer, number, part, suffix = found.groups(default="")
    return layer, int(number) if number else None, part, suffix


def _rows(layer: LayerSpec, part: str) -> int:
    """Return the outputs of a matrix that may be stacked with others."""
    if part.startswith("mlp.shared_experts."):
        assert isinstance(layer.mlp, MoE)
        return layer.mlp.shared_width
    if part.startswith("mlp."):
        assert isinstance(layer.mlp, Dense)
        return layer.mlp.width
    assert isinstance(layer.mixer, Attention)
    return (layer.mixer.heads if part.endswith("q_proj") else layer.mixer.kv_heads) * layer.mixer.head_dim


class _ByHead(NamedTuple):
    """Rows of a part in a tensor that holds several, head after head."""

    tensor: str
    total: int
    rows: Array


def _by_head(layer: LayerSpec, part: str) -> _ByHead | None:
    """None for what no family stacks so."""
    mixer = layer.mixer
    if isinstance(mixer, Attention) and mixer.gate and part in ("self_attn.q_proj", "self_attn.gate_proj"):
        chosen = 1 if part == "self_attn.gate_proj" else 0
        return _dealt("self_attn.q_proj", mixer.heads, (mixer.head_dim, mixer.head_dim), (chosen,))
    if not isinstance(mixer, LinearAttention) or part not in _BY_HEAD:
        return None
    shared = mixer.value_heads // mixer.key_heads
    values = shared * mixer.value_dim
    if part.endswith(("_b", "_a")):
        return _dealt("linear_attn.in_proj_ba", mixer.key_heads, (shared, shared), (1 if part.endswith("_a") else 0,))
    widths = (mixer.key_dim, mixer.key_dim, values, values)
    return _dealt("linear_attn.in_proj_qkvz", mixer.key_heads, widths, (3,) if part.endswith("_z") else (0, 1, 2))


def _dealt(tensor: str, heads: int, widths: tuple[int, ...], parts: Sequence[int]) -> _ByHead:
    """Choose rows of a tensor that has rows of these widths for each head: those of some parts, one after the other."""
    ends = np.cumsum((0, *widths))
    rows = np.arange(heads * ends[-1]).reshape(heads, -1)
    chosen = [rows[:, ends[one] : ends[one + 1]].ravel() for one in parts]
    return _ByHead(tensor, int(rows.size), np.concatenate(chosen))


def _order(layer: LayerSpec, part: str, count: int) -> Array | None:
    """Return the order that puts interleaved pairs of queries or keys into halves, head by head; None: none is
    needed."""
    mixer = layer.mixer
    if not isinstance(mixer, Attention | LatentAttention) or mixer.rope is None or not mixer.rope.interleaved:
        return None
    if isinstance(mixer, Attention) and part in _ROTATED:
        before, width = 0, mixer.head_dim
    elif isinstance(mixer, LatentAttention) and part in _ROTATED_QUERIES:
        before, width = mixer.qk_nope_head_dim, mixer.qk_nope_head_dim + mixer.qk_rope_head_dim
    elif isinstance(mixer, LatentAttention) and part == _ROTATED_KEY:
        before, width = mixer.kv_lora_rank, mixer.cached_width
    else:
        return None
    rotated = np.arange(before, before + mixer.rope.head_dim)
    head = np.concatenate([np.arange(before), rotated[::2], rotated[1::2], np.arange(rotated[-1] + 1, width)])
    heads: Array = (np.arange(count // width)[:, None] * width + head).reshape(-1)
    return heads
