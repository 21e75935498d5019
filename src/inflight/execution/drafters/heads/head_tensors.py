"""The tensors of a head under the names that are asked for: renamed, and matrices cut along their inputs.

A head multiplies a token's embedding and a hidden state, side by side, by one matrix. Cut in two, the matrix does so
without anybody laying them side by side: the sum of both products is that of the whole.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from inflight.execution.backends.matrices import Matrix, Rows, dequantized
from inflight.execution.backends.protocol import Array

if TYPE_CHECKING:
    from inflight.execution.packer import TensorSource


class InputPart(NamedTuple):
    """Where a tensor lies: of the tensor `name` the columns of part `part` of `parts` equal ones."""

    name: str
    part: int = 0
    parts: int = 1


class HeadTensors:
    """A source that answers by `place`, which says of each name that is asked for where it lies."""

    def __init__(self, source: TensorSource, place: Callable[[str], InputPart]) -> None:
        self._source, self._place = source, place

    def __contains__(self, name: str) -> bool:
        return self._place(name).name in self._source

    def tensor(self, name: str, shape: Sequence[int]) -> Array:
        """Return a tensor that the source has whole."""
        return self._source.tensor(self._place(name).name, shape)

    def pieces(self, name: str, shape: tuple[int, int]) -> Iterable[Rows]:
        """Return the pieces of a matrix that the source has whole."""
        return self._source.pieces(self._place(name).name, shape)

    def matrix(self, name: str, shape: tuple[int, int]) -> Matrix:
        """Return a part of a stored matrix. A quantized one is cut as plain numbers."""
        stored, part, parts = self._place(name)
        if parts == 1:
            return self._source.matrix(stored, shape)
        whole = self._source.matrix(stored, (shape[0], parts * shape[1]))
        plain = whole if isinstance(whole, np.ndarray) else dequantized(whole)
        return np.ascontiguousarray(plain[:, part * shape[1] : (part + 1) * shape[1]])

    def release(self, name: str) -> None:
        self._source.release(self._place(name).name)
