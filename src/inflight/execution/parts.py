"""The packed weights of a layer's parts, by kind: `models.parts` describes a kind, a class registered for it here runs.

The kinds of this package lie in `mixers` and `mlps`, in files named as those of their specs; a file is imported when a
model first has its kind.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING, Any, TypeVar

from msgspec import Struct

from inflight.models.errors import ModelError
from inflight.models.parts import Part

if TYPE_CHECKING:
    from typing import Self

    from inflight.execution.backends.protocol import Activation
    from inflight.execution.packer import Packer
    from inflight.execution.program import Program

W = TypeVar("W", bound="type[PartWeights]")
P = TypeVar("P")


class PartWeights(Struct, frozen=True):
    """A mixer or an MLP of one layer, packed by a backend."""

    @classmethod
    def load(cls, packer: Packer, spec: Any, layer: int, after: str | None) -> Self:
        """Pack the weights of a layer's part.

        Args:
            packer: Takes tensors by the names that most families share (docs/add-a-model.md) and packs them.
            spec: The part, of the kind that the class is registered for.
            layer: The layer's number.
            after: Name of the norm of the part's result; None where it has none (`layers.norm.Residual`).
        """
        raise NotImplementedError

    def forward(self, program: Program, x: Activation, hidden: Activation) -> None:
        """Record the part: read x act[T, E], and add the result to the residual stream hidden float32[T, E]."""
        raise NotImplementedError

    def with_partial_sums(self) -> Self:
        """Return the part on one of several devices that share it: its last product is a part of a sum
        (`partial_sum`)."""
        raise NotImplementedError


_CLASSES: dict[type[Part], type[PartWeights]] = {}


def computes(kind: type[Part]) -> Callable[[W], W]:
    """Register the decorated class for the parts of a kind."""

    def register(weights: W) -> W:
        _CLASSES[kind] = weights
        return weights

    return register


def load_part(packer: Packer, part: Part, layer: int, after: str | None) -> Any:
    """Pack a layer's part, whatever its kind. Raises ModelError for a kind that is only described."""
    kind = type(part)
    if kind not in _CLASSES and kind.__module__.startswith("inflight.models."):
        file = kind.__module__.replace("models", "execution", 1)
        try:
            import_module(file)
        except ModuleNotFoundError as error:
            if error.name != file:
                raise
    if kind not in _CLASSES:
        raise ModelError(
            f"layers of {kind.__name__} are described, but not computed by this decoder; take a model of another "
            "family."
        )
    return _CLASSES[kind].load(packer, part, layer, after)


def partial_sum(product: P) -> P:
    """Mark a packed product as a part of the sum of several devices' products."""
    return dataclasses.replace(product, is_partial=True)  # type: ignore[type-var]
