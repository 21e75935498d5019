"""Read experts by one kind of name, whatever a checkpoint calls them.

Published checkpoints have one tensor for each expert's matrix (Qwen and most others; Mixtral and LFM2 under names of
their own), all experts of a layer in one (as `transformers` holds them), or that transposed, with outputs of gate and
up in turns, and biases (gpt-oss). A layer asks for `mlp.gate` and `mlp.experts.E.gate_proj`; of a stack it gets a view,
or a copy of one expert's part, so that memory does not peak. Other names pass through.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from inflight.execution.backends.matrices import Matrix, Rows
from inflight.execution.backends.protocol import Array
from inflight.models.mlps.moe import MoE
from inflight.models.spec import ModelSpec

if TYPE_CHECKING:
    from inflight.execution.packer import TensorSource

_ROUTED = re.compile(r"(model\.layers\.(\d+)\.)mlp\.((?:gate|shared_experts|experts)\..+)")
_EXPERT = re.compile(r"experts\.(\d+)\.(gate|up|down)_proj\.(weight|bias)")
_MIXTRAL = {"gate": "w1", "up": "w3", "down": "w2"}
# Beginnings of names within a layer, and what else they are spelled as.
_SPELLINGS = {
    "gate.e_score_correction_bias": ("feed_forward.expert_bias",),
    "gate.": ("block_sparse_moe.gate.", "block_sparse_moe.router.layer.", "mlp.router.", "feed_forward.gate."),
    "shared_experts.": ("mlp.shared_expert.",),
}
# Of all experts of a layer, by whether it is of down: outputs of gate, then of up.
_STACKS = (
    ("mlp.experts.gate_up_proj", "block_sparse_moe.input_linear.weight"),
    ("mlp.experts.down_proj", "block_sparse_moe.output_linear.weight"),
)
_CORRECTION = "mlp.moe_statics.e_score_correction_bias"  # ERNIE's, [1, experts]


class _Place(NamedTuple):
    """Where the wanted tensor is: `cut` of the tensor of that name and shape."""

    name: str
    shape: tuple[int, ...]
    cut: Callable[[Array], Array]


class ExpertNames:
    """A source of tensors that has experts under the names of this module."""

    def __init__(self, source: TensorSource, model: ModelSpec) -> None:
        self._source, self._model = source, model

    def __contains__(self, name: str) -> bool:
        return name in self._source or self._place(name, ()) is not None

    def tensor(self, name: str, shape: Sequence[int]) -> Array:
        """Return a tensor, wherever it lies. Raises ModelError, which has the name that was asked for."""
        place = None if name in self._source else self._place(name, tuple(shape))
        if place is None:
            return self._source.tensor(name, shape)
        return place.cut(self._source.tensor(place.name, place.shape))

    def pieces(self, name: str, shape: tuple[int, int]) -> Iterable[Rows]:
        """Return the pieces of a matrix that no expert has, as the source does."""
        return self._source.pieces(name, shape)

    def matrix(self, name: str, shape: tuple[int, int]) -> Matrix:
        """Return a matrix, wherever it lies; plain numbers where it is cut of a stack."""
        place = None if name in self._source else self._place(name, shape)
        if place is None:
            return self._source.matrix(name, shape)
        if place.shape == shape:
            return self._source.matrix(place.name, shape)
        return place.cut(self._source.tensor(place.name, place.shape))

    def release(self, name: str) -> None:
        place = None if name in self._source else self._place(name, ())
        self._source.release(name if place is None else place.name)

    def _place(self, name: str, shape: tuple[int, ...]) -> _Place | None:
        """Return where else a tensor lies. shape: of the tensor; (): the place's name alone is wanted."""
        found = _ROUTED.fullmatch(name)
        if found is None:
            return None
        layer, number, part = found.groups()
        places = (*_renamed(layer, part, shape), *self._stacked(layer, int(number), part, shape))
        return next((place for place in places if place.name in self._source), None)

    def _stacked(self, layer: str, number: int, part: str, shape: tuple[int, ...]) -> list[_Place]:
        """List the stacks of all the layer's experts that may hold the part."""
        found = _EXPERT.fullmatch(part)
        mlp = self._model.layers[number].mlp if number < len(self._model.layers) else None
        if found is None or not isinstance(mlp, MoE):
            return []
        expert, matrix, kind = int(found[1]), found[2], found[3]
        stacks = [layer + one for one in _STACKS[matrix == "down"]]
        if kind == "bias":
            stacks = [stack + "_bias" for stack in stacks]
        rows = (*(shape[:1] if matrix == "down" else (2 * size for size in shape[:1])), *shape[1:])
        if not mlp.bias:
            first = shape[0] if matrix == "up" and shape else 0
            return [
                _Place(stack, (mlp.experts, *rows), lambda whole: whole[expert, first : first + shape[0]])
                for stack in stacks
            ]
        # Inputs by outputs, of which every second one is gate's.
        step, first = (1, 0) if matrix == "down" else (2, int(matrix == "up"))
        turned = (mlp.experts, *reversed(rows))
        return [
            _Place(stack, turned, lambda whole: np.ascontiguousarray(whole[expert, ..., first::step].T))
            for stack in stacks
        ]


def _renamed(layer: str, part: str, shape: tuple[int, ...]) -> list[_Place]:
    """List the part under other names."""
    names = [
        other + part[len(begin) :]
        for begin, spellings in _SPELLINGS.items()
        if part.startswith(begin)
        for other in spellings
    ]
    if found := _EXPERT.fullmatch(part):
        end = f".experts.{found[1]}.{_MIXTRAL[found[2]]}.{found[3]}"
        names += ["block_sparse_moe" + end, "feed_forward" + end]
    places = [_Place(layer + name, shape, lambda whole: whole) for name in names]
    if part == "gate.e_score_correction_bias":
        places.append(_Place(layer + _CORRECTION, (1, *shape), lambda whole: whole[0]))
    return places
