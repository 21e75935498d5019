"""Read a checkpoint under the names that most families share, in the row order that the backends compute in.

A family's checkpoints may spell parts of names otherwise (`Family.names`), stack several matrices in one tensor, one
after the other or head by head, hold rotated pairs of queries and keys side by side, and put a prefix before a text
part that lies beside others. All of it is a choice of rows, so no number changes.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from inflight.execution.backends.matrices import Matrix, Rows, rows_of
from inflight.execution.backends.protocol import Array
from inflight.models.spec import LayerSpec, ModelSpec

if TYPE_CHECKING:
    from inflight.execution.packer import TensorSource

_LAYER = re.compile(r"(model\.layers\.(\d+)\.)?(.+?)(\.weight|\.bias)?")
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
        """Return the pieces of a matrix that the source has whole and in order."""
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
        layer, number, part, suffix = _parts(name)
        may_be_separate = part in self._stacked or (number is not None and self._is_by_head(number, part))
        if layer:
            layer = self._names.get(LAYERS, LAYERS) + layer.removeprefix(LAYERS)
        named = self._rooted(layer + self._names.get(part, part) + suffix)
        if "norm" in named.lower():
            old = named.removesuffix(suffix) + _OLD_NORMS.get(suffix, suffix)
            if named not in self._source and old in self._source:
                return old
        # A matrix that a family stacks may be stored separately in another form of its checkpoints.
        separate = self._rooted(layer + part + suffix)
        return separate if may_be_separate and named not in self._source and separate in self._source else named

    def _is_by_head(self, layer: int, name: str) -> bool:
        found = self._model.layers[layer].part_of(name)
        return found is not None and found[0].stacked_by_head(found[1]) is not None

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


def _rows(layer: LayerSpec, name: str) -> int:
    """Return the outputs of a matrix that may be stacked with others."""
    found = layer.part_of(name)
    assert found is not None, "parts alone are stacked"
    return found[0].rows(found[1])


class _ByHead(NamedTuple):
    """Rows of a matrix in a tensor that has several, head after head."""

    tensor: str
    total: int
    rows: Array


def _by_head(layer: LayerSpec, name: str) -> _ByHead | None:
    """Return the rows of a matrix that families stack so; None for any other."""
    found = layer.part_of(name)
    stack = None if found is None else found[0].stacked_by_head(found[1])
    if found is None or stack is None:
        return None
    ends = np.cumsum((0, *stack.widths))
    rows = np.arange(stack.heads * ends[-1]).reshape(stack.heads, -1)
    chosen = [rows[:, ends[one] : ends[one + 1]].ravel() for one in stack.chosen]
    return _ByHead(f"{found[0].module}.{stack.tensor}", int(rows.size), np.concatenate(chosen))


def _order(layer: LayerSpec, name: str, count: int) -> Array | None:
    """Return the order that puts interleaved pairs of queries or keys into halves, head by head; None: none is
    needed."""
    rope, found = layer.mixer.rope, layer.part_of(name)
    if rope is None or not rope.interleaved or found is None:
        return None
    heads = found[0].rotated_rows(found[1])
    if heads is None:
        return None
    rotated = np.arange(heads.before, heads.before + rope.head_dim)
    head = np.concatenate(
        [np.arange(heads.before), rotated[::2], rotated[1::2], np.arange(rotated[-1] + 1, heads.width)]
    )
    order: Array = (np.arange(count // heads.width)[:, None] * heads.width + head).reshape(-1)
    return order
