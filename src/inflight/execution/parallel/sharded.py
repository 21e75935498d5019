"""A source of tensors that yields one device's part of each.

Knows how a tensor of any kind is cut; where, `shards` says. What it is asked for has the device's shapes, what it asks
for the whole model's.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from inflight.execution.backends.matrices import Matrix, Rows, columns_of, rows_of
from inflight.execution.backends.protocol import Array
from inflight.execution.parallel.shards import Cut, Shard
from inflight.models.errors import ModelError

if TYPE_CHECKING:
    from inflight.execution.packer import TensorSource


class ShardedTensors:
    """Around a source that has tensors under the names that layers ask for, whole."""

    def __init__(self, source: TensorSource, shard: Shard) -> None:
        self._source, self._shard = source, shard

    def __contains__(self, name: str) -> bool:
        return name in self._source

    def tensor(self, name: str, shape: Sequence[int]) -> Array:
        """As of the source. The bias of a sum is the first device's; on others it is 0."""
        cut = self._shard.cut_of(name)
        if cut is None:
            return self._source.tensor(name, shape)
        if cut.along == "sum":
            whole = self._source.tensor(name, shape)
            return whole if cut.place == 0 else np.zeros_like(whole)
        part: Array = self._source.tensor(name, (shape[0] * cut.parts, *shape[1:]))[_part(cut, shape[0])]
        return part

    def matrix(self, name: str, shape: tuple[int, int]) -> Matrix:
        """As of the source. Raises ModelError, too, where a cut would fall into a group that cannot be divided."""
        cut = self._shard.cut_of(name)
        if cut is None:
            return self._source.matrix(name, shape)
        rows, columns = shape
        if cut.along == "outputs":
            return rows_of(self._source.matrix(name, (rows * cut.parts, columns)), _part(cut, rows))
        whole = self._source.matrix(name, (rows, columns * cut.parts))
        try:
            return columns_of(whole, _part(cut, columns))
        except ValueError as error:
            raise ModelError(
                f"tensor {name!r} cannot be shared by {cut.parts} devices: {error}; take fewer, by "
                "--tensor-parallel-size, or another quantization of the model."
            ) from None

    def pieces(self, name: str, shape: tuple[int, int]) -> Iterable[Rows]:
        """As of the source: tables are whole."""
        return self._source.pieces(name, shape)

    def release(self, name: str) -> None:
        self._source.release(name)


def _part(cut: Cut, size: int) -> slice:
    return slice(cut.place * size, (cut.place + 1) * size)
