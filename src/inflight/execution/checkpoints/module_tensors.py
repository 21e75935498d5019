"""Tensors of a folder's modules beside the model's own: `2_Dense/linear.weight` is `linear.weight` of the folder
2_Dense.

Knows names; what modules compute, `models.sentence_transformers` knows.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from inflight.execution.backends.matrices import Matrix, Rows
from inflight.execution.backends.protocol import Array
from inflight.execution.checkpoints.checkpoint import Checkpoint

if TYPE_CHECKING:
    from inflight.execution.packer import TensorSource


class ModuleTensors:
    def __init__(self, model: TensorSource, folder: Path) -> None:
        """model: the tensors without a module's name."""
        self._model = model
        self._module = lru_cache(lambda name: Checkpoint(folder / name))

    def __contains__(self, name: str) -> bool:
        source, own = self._place(name)
        return own in source

    def tensor(self, name: str, shape: Sequence[int]) -> Array:
        source, own = self._place(name)
        return source.tensor(own, shape)

    def matrix(self, name: str, shape: tuple[int, int]) -> Matrix:
        source, own = self._place(name)
        return source.matrix(own, shape)

    def pieces(self, name: str, shape: tuple[int, int]) -> Iterable[Rows]:
        source, own = self._place(name)
        return source.pieces(own, shape)

    def release(self, name: str) -> None:
        source, own = self._place(name)
        source.release(own)

    def _place(self, name: str) -> tuple[TensorSource, str]:
        module, slash, own = name.rpartition("/")
        return (self._module(module), own) if slash else (self._model, name)
