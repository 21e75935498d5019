"""Cuts a model for several devices: its shape on each, and where each tensor is cut.

Knows specs and names of tensors; no weights, no device. Cut are the heads of attention and the width of MLPs and
experts: the first matrices of both by their outputs, the last ones by their inputs, whose products are then parts of a
sum. Of KV heads that are fewer than devices, several devices hold the same one. Everything else is whole on every
device: tables, the output projection, routers, norms, and mixers that this module does not know how to cut.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, NamedTuple

from msgspec.structs import replace

from inflight.models.errors import ModelError
from inflight.models.parts import Part
from inflight.models.spec import LayerSpec, ModelSpec

MAX_RANKS = 64  # devices that share a model
_NAMED = re.compile(r"model\.layers\.(\d+)\.(.+?)(?:\.(weight|bias))?")


Along = Literal["outputs", "inputs", "sum"]


class Cut(NamedTuple):
    """A tensor in `parts` equal pieces along its outputs or its inputs, of which number `place` is meant. sum: of the
    bias of a product that is cut by its inputs, which counts in one of the parts alone."""

    along: Along
    parts: int
    place: int


@dataclass(frozen=True)
class Shard:
    """The part of a model that one of `ranks` devices holds. Raises ModelError where it cannot be cut so."""

    whole: ModelSpec
    rank: int
    ranks: int

    @cached_property
    def spec(self) -> ModelSpec:
        """The model as this device computes it. The same on each."""
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
        along: Along = "sum" if slices.along == "inputs" and found[3] == "bias" else slices.along
        return Cut(along, slices.pieces, self.rank * slices.pieces // self.ranks)


def cut_model(model: ModelSpec, ranks: int) -> ModelSpec:
    """Return a model as each of so many devices computes it. Raises ModelError where they cannot share it evenly."""
    if reason := _why_not(model, ranks):
        others = [f"{count}" for count in range(2, MAX_RANKS + 1) if not _why_not(model, count)]
        do = f"it can be {_one_of(others)}" if others else "leave it out"
        raise ModelError(f"the model has {reason}, which {ranks} devices cannot share; --tensor-parallel-size: {do}.")
    cut = {layer: _cut_layer(layer, ranks) for layer in dict.fromkeys(model.layers)}
    return replace(model, layers=tuple(cut[layer] for layer in model.layers))


def kept_whole(model: ModelSpec) -> tuple[str, ...]:
    """Describe the model's parts that every device computes alone."""
    parts = (part for layer, _ in model.kinds_of_layers for part in _parts(layer))
    return tuple(dict.fromkeys(part.whole for part in parts if part.whole))


def _parts(layer: LayerSpec) -> tuple[Part, Part]:
    return layer.mixer, layer.mlp


def _why_not(model: ModelSpec, ranks: int) -> str | None:
    """Describe sizes of the model that are no multiple of the devices; None where all are."""
    parts = (part for layer, _ in model.kinds_of_layers for part in _parts(layer))
    return next((reason for part in parts if not part.whole and (reason := part.uneven(ranks))), None)


def _cut_layer(layer: LayerSpec, ranks: int) -> LayerSpec:
    mixer, mlp = layer.mixer, layer.mlp
    return replace(
        layer,
        mixer=mixer if mixer.whole else mixer.on_one_of(ranks),
        mlp=mlp if mlp.whole else mlp.on_one_of(ranks),
    )


def _one_of(words: list[str]) -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} or {words[-1]}"
