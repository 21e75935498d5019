"""Which of a model's packed matrices an adapter changes, and by what.

Joins modules as the adapter's file names them (as transformers calls the model's own) with places in what was packed: a
family's names, matrices that are stacked there or here, and the order of rows are `FamilyTensors`', which is asked for
rows of B as if they were rows of the model's matrix.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import NamedTuple

import numpy as np

from inflight.execution.backends.protocol import Array, Delta, LowRank
from inflight.execution.checkpoints.family_names import LAYERS, FamilyTensors
from inflight.execution.checkpoints.lora_files import LoraFiles
from inflight.execution.packer import WeightPlace
from inflight.json_file import shown
from inflight.models.errors import ModelError
from inflight.models.spec import ModelSpec

_OUTPUTS = 32  # that a packed A is filled up to
_RANKS = 8  # that ranks are filled up to, on a GPU


class _Found(NamedTuple):
    """A part of a packed matrix, and the module that changes it."""

    name: str
    place: WeightPlace
    module: str


class AdapterMatrices:
    def __init__(self, model: ModelSpec, places: Mapping[str, WeightPlace]) -> None:
        self._model, self._places = model, places

    def check(self, files: LoraFiles) -> None:
        """Raise ModelError for an adapter that this model cannot be computed with. Reads no matrix."""
        ups = _Ups(files, reads=False)
        named = self._named(ups, files)
        used = set()
        for found in self._found(named, files):
            self._rows(named, found, files)
            used.add(found.module)
        left = sorted(set(files.modules) - used)
        if left:
            raise ModelError(
                f"{files.folder} changes {shown(left[0])}"
                f"{f' and {len(left) - 1} others' if len(left) > 1 else ''}, which this model has not, or which is not "
                "multiplied with all tokens alike (an expert, the output projection); train it for the attention's and "
                "the MLP's linear modules."
            )

    def deltas(self, files: LoraFiles) -> Iterator[Delta]:
        """One by one, as they are read. Raises ModelError as `check` does."""
        ups = _Ups(files, reads=True)
        named = self._named(ups, files)
        for _, alike in groupby(self._found(named, files), key=lambda found: id(found.place.weight)):
            parts = list(alike)
            yield Delta(
                parts[0].place.weight,
                tuple(LowRank(one.place.first, files.down(one.module), self._rows(named, one, files)) for one in parts),
            )

    def max_bytes(self, rank: int, item: int) -> int:
        """Return the bytes of an adapter of this rank for every matrix, the largest there is. item: bytes of a
        number."""
        by_weight = groupby(self._places.values(), key=lambda place: id(place.weight))
        numbers, rank = 0, -(-rank // _RANKS) * _RANKS
        for _, alike in by_weight:
            parts = list(alike)
            numbers += -(-rank * len(parts) // _OUTPUTS) * _OUTPUTS * parts[0].columns
            numbers += sum(rank * (-(-one.rows // _OUTPUTS) * _OUTPUTS) for one in parts)
        return numbers * item

    def _named(self, ups: _Ups, files: LoraFiles) -> FamilyTensors:
        layers = dict(self._model.names).get(LAYERS, LAYERS).removeprefix("model.")
        return FamilyTensors(self._model, ups, shown_by=f"{layers}.")

    def _found(self, named: FamilyTensors, files: LoraFiles) -> Iterable[_Found]:
        for name, place in self._places.items():
            if name in named:
                yield _Found(name, place, named.stored(name).removesuffix(".weight"))

    def _rows(self, named: FamilyTensors, found: _Found, files: LoraFiles) -> Array:
        """B's rows of a part, [rows, rank]."""
        shape, place = files.modules[found.module], found.place
        if shape.columns != place.columns:
            raise ModelError(
                f"{files.folder} changes {shown(found.module)} of {shape.columns:,} inputs, but this model's has "
                f"{place.columns:,}: the adapter is of another model"
                f"{f' ({files.config.base})' if files.config.base else ''}."
            )
        return np.ascontiguousarray(named.tensor(found.name, (place.rows, shape.rank)))


class _Ups:
    """Each B of an adapter, where a checkpoint has the whole matrix."""

    def __init__(self, files: LoraFiles, reads: bool) -> None:
        """Hold an adapter's files. reads: whether matrices are read; else all are zeros."""
        self._files, self._reads = files, reads

    def __contains__(self, name: str) -> bool:
        """Also of a beginning of names, which ends with a dot."""
        modules = self._files.modules
        if name.endswith("."):
            return any(module.startswith(name) for module in modules)
        return name.endswith(".weight") and name.removesuffix(".weight") in modules

    def tensor(self, name: str, shape: Sequence[int]) -> Array:
        module = name.removesuffix(".weight")
        found = self._files.modules[module]
        if found.rows != shape[0]:
            raise ModelError(
                f"{self._files.folder} changes {shown(module)} of {found.rows:,} outputs, but this model's has "
                f"{shape[0]:,}: the adapter is of another model"
                f"{f' ({self._files.config.base})' if self._files.config.base else ''}."
            )
        if self._reads:
            return self._files.up(module)
        return np.broadcast_to(np.float32(0), (found.rows, found.rank))

    def matrix(self, name: str, shape: tuple[int, int]) -> Array:
        return self.tensor(name, shape)

    def pieces(self, name: str, shape: tuple[int, int]) -> Iterable[Array]:
        return (self.tensor(name, shape),)

    def release(self, name: str) -> None:
        """Files let go of themselves."""
