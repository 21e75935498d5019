"""An activation: memory for rows of numbers, and how many of them were written last. Not what they mean."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from inflight.execution.backends.protocol import Array


@dataclass(slots=True)
class ReferenceActivation:
    """rows: those that were written last."""

    array: Array  # [capacity, width]
    rows: int

    @property
    def nbytes(self) -> int:
        return int(self.array.nbytes)

    @property
    def width(self) -> int:
        return int(self.array.shape[1])

    @property
    def written(self) -> Array:
        return self.array[: self.rows]

    @property
    def is_float32(self) -> bool:
        return bool(self.array.dtype == np.float32)

    def write(self, values: Array) -> None:
        self.rows = len(values)
        self.array[: self.rows] = values
