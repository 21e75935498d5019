"""Cuts a model for several devices: its shape on each, and each device's part of its tensors.

Heads of attention and the width of MLPs and experts are cut: the first matrices of both by their outputs, the last ones
by their inputs, whose products are then parts of a sum. Where KV heads are fewer than devices, several devices have the
same one. Everything else is whole on every device: tables, the output projection, routers and norms.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from inflight.execution.backends.matrices import Matrix, columns_of, rows_of
from inflight.execution.backends.protocol import Array
from inflight.models.errors import ModelError
from inflight.models.parts import Part
from inflight.models.spec import LayerSpec, ModelSpec

if TYPE_CHECKING:
    from inflight.execution.packer import TensorSource

MAX_RANKS = 64  # devices that share a model
SECONDS = 120.0  # that a device waits for another: kernels may be compiled for the first time in between
_NAMED = re.compile(r"model\.layers\.(\d+)\.(.+?)(?:\.(weight|bias))?")


class Cut(NamedTuple):
    """One of `parts` equal pieces of a tensor along its outputs or its inputs. sum: the bias of a product that is cut
    by its inputs, which counts in the first part alone."""

    along: Literal["outputs", "inputs", "sum"]
    parts: int
    number: int

    def of(self, size: int) -> slice:
        """Return the piece's slice; size: of a piece."""
        return slice(self.number * size, (self.number + 1) * size)


@dataclass(frozen=True)
class Shard:
    """The part of a model that one of `ranks` devices has. Raises ModelError where it cannot be cut so."""

    whole: ModelSpec
    rank: int
    ranks: int

    @cached_property
    def spec(self) -> ModelSpec:
        """Return the model as this device computes it, the same on each."""
        return cut_model(self.whole, self.ranks)

    def cut_of(self, name: str) -> Cut | None:
        """Return the cut of a tensor, by the name that a layer asks for; None: it is whole everywhere."""
        found = _NAMED.fullmatch(name)
        belongs = found and self.whole.layers[int(found[1])].part_of(found[2])
        if not found or not belongs:
            return None
        part, tensor = belongs
        slices = None if part.whole else part.slices(tensor, self.ranks)
        if slices is None:
            return None
        is_sum = slices.along == "inputs" and found[3] == "bias"
        return Cut("sum" if is_sum else slices.along, slices.pieces, self.rank * slices.pieces // self.ranks)


class Member(Struct, frozen=True):
    """A process among those that compute a model together.

    Attributes:
        folder: A folder of their own, by which processes find each other.
        seconds: A wait for another process ends in an error after this time.
    """

    shard: Shard
    folder: str
    seconds: float = SECONDS


def device_of(first: str, rank: int) -> str:
    """Return a rank's device: consecutive GPUs from the first rank's on; all ranks share a CPU."""
    kind, _, number = first.partition(":")
    return first if kind == "cpu" else f"{kind}:{int(number) + rank}"


def cut_model(model: ModelSpec, ranks: int) -> ModelSpec:
    """Return a model as each of so many devices computes it. Raises ModelError where they cannot share it evenly."""
    if reason := _why_not(model, ranks):
        others = [f"{count}" for count in range(2, MAX_RANKS + 1) if not _why_not(model, count)]
        listed = " or ".join(", ".join(others).rsplit(", ", 1))
        do = f"it can be {listed}" if others else "leave it out"
        raise ModelError(f"the model has {reason}, which {ranks} devices cannot share; --tensor-parallel-size: {do}.")
    cut = {layer: _cut_layer(layer, ranks) for layer in dict.fromkeys(model.layers)}
    return replace(model, layers=tuple(cut[layer] for layer in model.layers))


def kept_whole(model: ModelSpec) -> tuple[str, ...]:
    """Describe the model's parts that every device computes alone."""
    return tuple(dict.fromkeys(part.whole for part in _parts(model) if part.whole))


def _parts(model: ModelSpec) -> Iterable[Part]:
    return (part for layer, _ in model.kinds_of_layers for part in (layer.mixer, layer.mlp))


def _why_not(model: ModelSpec, ranks: int) -> str | None:
    """Describe sizes of the model that are no multiple of the devices; None where all are."""
    return next((reason for part in _parts(model) if not part.whole and (reason := part.uneven(ranks))), None)


def _cut_layer(layer: LayerSpec, ranks: int) -> LayerSpec:
    mixer, mlp = layer.mixer, layer.mlp
    return replace(
        layer,
        mixer=mixer if mixer.whole else mixer.on_one_of(ranks),
        mlp=mlp if mlp.whole else mlp.on_one_of(ranks),
    )


class ShardedTensors:
    """A device's parts of the tensors of a source: requests have the shapes of the parts."""

    def __init__(self, source: TensorSource, shard: Shard) -> None:
        self._source, self._shard = source, shard
        self.pieces, self.release = source.pieces, source.release  # of tables, which are whole

    def __contains__(self, name: str) -> bool:
        return name in self._source

    def tensor(self, name: str, shape: Sequence[int]) -> Array:
        """Return this device's part of a tensor. The bias of a sum is the first device's; on others it is 0."""
        cut = self._shard.cut_of(name)
        if cut is None or cut.along == "sum":
            whole = self._source.tensor(name, shape)
            return whole if cut is None or cut.number == 0 else np.zeros_like(whole)
        part: Array = self._source.tensor(name, (shape[0] * cut.parts, *shape[1:]))[cut.of(shape[0])]
        return part

    def matrix(self, name: str, shape: tuple[int, int]) -> Matrix:
        """Return this device's part of a matrix. Raises ModelError, too, where a cut would fall into a group that
        cannot be divided."""
        cut, (rows, columns) = self._shard.cut_of(name), shape
        if cut is None:
            return self._source.matrix(name, shape)
        if cut.along == "outputs":
            return rows_of(self._source.matrix(name, (rows * cut.parts, columns)), cut.of(rows))
        whole = self._source.matrix(name, (rows, columns * cut.parts))
        try:
            return columns_of(whole, cut.of(columns))
        except ValueError as error:
            raise ModelError(
                f"tensor {name!r} cannot be shared by {cut.parts} devices: {error}; take fewer, by "
                "--tensor-parallel-size, or another quantization of the model."
            ) from None
