"""How long will an answer be? Online quantiles, because in life nobody knows.

Lengths that were seen are kept as histograms over logarithmic bins, by tenant, prompt-length bucket and max_tokens; a
sparse histogram gives way to a coarser one, and without any the answer is a share of max_tokens. Those that nothing
was added to for longest are given up when there are too many. `Oracle` alone looks at forced lengths, to measure what
perfect knowledge would bring.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterator
from typing import Protocol

from msgspec import Struct

from inflight.core.types.request import Request

BINS_PER_OCTAVE = 4
ENOUGH = 20  # lengths seen before a histogram is believed
DECAY = 0.999  # per length: a histogram forgets half after about 700
GUESS = 0.5  # share of max_tokens, when nothing was seen
MOST = 4096  # histograms kept: clients choose what they are keyed by


class Predictor(Protocol):
    def predict(self, request: Request, max_output_tokens: int, so_far: int) -> float:
        """Expected output tokens in all, given that `so_far` exist."""

    def observe(self, request: Request, output_tokens: int) -> None:
        """A sample ended by itself after so many tokens."""


class Quantiles:
    """Predicts the median of the lengths seen that are longer than what exists already."""

    def __init__(self) -> None:
        self._histograms: dict[Hashable, list[float]] = {}  # the one that was added to last comes last
        self._most_seen = 0

    def predict(self, request: Request, max_output_tokens: int, so_far: int) -> float:
        for key in _keys(request):
            longer = self._histograms.get(key, [])[_bin(so_far + 1) :]
            if sum(longer) >= ENOUGH:
                return min(max_output_tokens, max(so_far + 1.0, _median(longer, _bin(so_far + 1))))
        guess = GUESS * max_output_tokens if not self._most_seen else min(max_output_tokens, 2.0 * self._most_seen)
        return max(so_far + 1.0, guess)

    def observe(self, request: Request, output_tokens: int) -> None:
        self._most_seen = max(self._most_seen, output_tokens)
        place = _bin(output_tokens)
        for key in _keys(request):
            histogram = self._histograms[key] = self._histograms.pop(key, [])
            histogram += [0.0] * (place + 1 - len(histogram))
            for index in range(len(histogram)):
                histogram[index] *= DECAY
            histogram[place] += 1.0
        while len(self._histograms) > MOST:
            del self._histograms[next(iter(self._histograms))]


class Oracle:
    """Knows forced lengths; without one it knows no better than max_tokens."""

    def predict(self, request: Request, max_output_tokens: int, so_far: int) -> float:
        forced = request.forced_output_tokens
        return float(max_output_tokens if forced is None else min(forced, max_output_tokens))

    def observe(self, request: Request, output_tokens: int) -> None:
        """Nothing to learn."""


class PredictorEntry(Struct, frozen=True, kw_only=True):
    """A predictor by its name. reason: what it does, shown where it is in force."""

    name: str
    reason: str
    make: Callable[[], Predictor]


QUANTILES = PredictorEntry(name="quantiles", reason="of the output lengths seen so far", make=Quantiles)
ORACLE = PredictorEntry(name="oracle", reason="the forced lengths, which nobody knows in life", make=Oracle)
PREDICTORS = {entry.name: entry for entry in (QUANTILES, ORACLE)}


def _keys(request: Request) -> Iterator[Hashable]:
    """From the finest to the coarsest."""
    bucket = len(request.prompt_token_ids).bit_length()
    limit = request.params.max_tokens
    yield request.tenant, bucket, limit
    yield bucket, limit
    yield ()


def _bin(length: int) -> int:
    return int(math.log2(max(1, length)) * BINS_PER_OCTAVE)


def _median(weights: list[float], first_bin: int) -> float:
    half, passed = sum(weights) / 2, 0.0
    for index, weight in enumerate(weights):
        passed += weight
        if passed >= half:
            return float(2 ** ((first_bin + index + 0.5) / BINS_PER_OCTAVE))
    raise AssertionError("half of a sum lies below it")
