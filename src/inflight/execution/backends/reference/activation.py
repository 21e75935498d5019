"""An activation: memory for rows of numbers, and how many of them were written last. Not what they mean."""

from __future__ import annotations

from dataclasses import dataclass

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

    def write(self, values: Array) -> None:
        self.rows = len(values)
        self.array[: self.rows] = values
