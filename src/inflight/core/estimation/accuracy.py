"""How far off were the predicted output lengths? Counted as sequences end.

Knows pairs of numbers: what was predicted when a request came, and what it turned out to be. A request that was aborted
or failed says nothing about its length and is not counted.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PredictionError:
    """Of `samples` ended sequences. relative_error: mean of |predicted - actual| / actual. within_twice: share that was
    predicted between half and twice of what came. bias: predicted tokens in all over actual ones, minus 1."""

    samples: int = 0
    relative_error: float = 0.0
    within_twice: float = 0.0
    bias: float = 0.0


class PredictionTally:
    __slots__ = ("_actual", "_errors", "_near", "_predicted", "_samples")

    def __init__(self) -> None:
        self._samples = 0
        self._errors = 0.0
        self._near = 0
        self._predicted = 0.0
        self._actual = 0

    def observe(self, predicted: float, actual: int) -> None:
        """Output tokens in all. actual: at least 1."""
        self._samples += 1
        self._errors += abs(predicted - actual) / actual
        self._near += actual / 2 <= predicted <= 2 * actual
        self._predicted += predicted
        self._actual += actual

    def error(self) -> PredictionError:
        if not self._samples:
            return PredictionError()
        return PredictionError(
            self._samples,
            self._errors / self._samples,
            self._near / self._samples,
            self._predicted / self._actual - 1,
        )
