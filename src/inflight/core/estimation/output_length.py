"""Output length: predicted by online quantiles, and how far off predictions were.

Histograms of ended answers over logarithmic bins are kept by tenant, prompt length and max_tokens. A sparse one is
replaced by a coarser one; without any all lengths up to max_tokens are alike. Least recently used ones are dropped
when there are too many. `Oracle` alone reads forced lengths, to measure what perfect knowledge would bring.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from dataclasses import dataclass
from typing import Protocol

from inflight.core.types.length_distribution import (
    LengthDistribution,
    bin_of,
    bin_start,
    of_weights,
    point,
    uniform,
)
from inflight.core.types.request import Request

MIN_SAMPLES = 20  # lengths before a histogram is used
DECAY = 0.999  # for each length: a histogram forgets half after about 700
MAX_HISTOGRAMS = 4096  # clients choose their keys


class Predictor(Protocol):
    def lengths(self, request: Request, max_output_tokens: int, so_far: int) -> LengthDistribution:
        """Return the distribution of the output tokens in all, of a sample that has `so_far` and goes on."""

    def observe(self, request: Request, output_tokens: int) -> None:
        """Learn the length of a sample that ended by itself."""


class Quantiles:
    """Predicts as the lengths were that are longer than the output so far."""

    def __init__(self) -> None:
        self._histograms: dict[Hashable, list[float]] = {}  # the one that was added to last comes last
        self._longest = 0

    def lengths(self, request: Request, max_output_tokens: int, so_far: int) -> LengthDistribution:
        if weights := self._weights(request, so_far):
            known = of_weights(weights, max_output_tokens)
            if known.exceeds(so_far) > 0:
                return known.given(so_far)
        most = min(max_output_tokens, 2 * self._longest) if self._longest else max_output_tokens
        return uniform(so_far + 1, most)

    def _weights(self, request: Request, so_far: int) -> list[float]:
        """Return the finest histogram with enough lengths beyond `so_far`; empty without any."""
        for key in _keys(request):
            histogram = self._histograms.get(key, [])
            if sum(histogram[bin_of(so_far + 1) :]) >= MIN_SAMPLES:
                return histogram
        return []

    def observe(self, request: Request, output_tokens: int) -> None:
        self._longest = max(self._longest, output_tokens)
        most = request.params.max_tokens
        newest = bin_of(output_tokens)
        if most is not None and output_tokens >= most:  # it would have been longer: it counts for the next length's bin
            newest = bin_of(bin_start(newest + 1))
        for key in _keys(request):
            histogram = self._histograms[key] = self._histograms.pop(key, [])
            histogram += [0.0] * (newest + 1 - len(histogram))
            for index in range(len(histogram)):
                histogram[index] *= DECAY
            histogram[newest] += 1.0
        while len(self._histograms) > MAX_HISTOGRAMS:
            del self._histograms[next(iter(self._histograms))]


class Oracle:
    """Predicts the forced length; max_tokens without one."""

    def lengths(self, request: Request, max_output_tokens: int, so_far: int) -> LengthDistribution:
        forced = request.forced_output_tokens
        return point(max_output_tokens if forced is None else min(forced, max_output_tokens))

    def observe(self, request: Request, output_tokens: int) -> None:
        """Ignore the length."""


@dataclass(frozen=True, slots=True)
class PredictionError:
    """Error of the predictions made on arrival, of sequences that ended by themselves."""

    samples: int = 0  # number of these sequences
    relative_error: float = 0.0  # mean of |predicted - actual| / actual
    within_twice: float = 0.0  # share with a prediction between half and twice the length
    bias: float = 0.0  # sum of predictions over sum of lengths, minus 1


class PredictionTally:
    __slots__ = ("_actual", "_errors", "_predicted", "_samples", "_within_twice")

    def __init__(self) -> None:
        self._samples = self._within_twice = self._actual = 0
        self._errors = self._predicted = 0.0

    def observe(self, predicted: float, actual: int) -> None:
        """Count one sequence of at least 1 output token."""
        self._samples += 1
        self._errors += abs(predicted - actual) / actual
        self._within_twice += actual / 2 <= predicted <= 2 * actual
        self._predicted += predicted
        self._actual += actual

    def error(self) -> PredictionError:
        if not (samples := self._samples):
            return PredictionError()
        bias = self._predicted / self._actual - 1
        return PredictionError(samples, self._errors / samples, self._within_twice / samples, bias)


def _keys(request: Request) -> Iterator[Hashable]:
    """Yield the keys of histograms, the finest first."""
    bucket, limit = len(request.prompt_token_ids).bit_length(), request.params.max_tokens
    yield request.tenant, bucket, limit
    yield bucket, limit
    yield ()
