"""Distribution of an output's length: what a predictor answers.

Bins of whole numbers, each with a probability; within a bin all numbers are equally likely. A length is the total
number of output tokens, and max_tokens bounds it: the probability of longer answers lies at the bound.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from msgspec import Struct

from inflight.counted import Count

BINS_PER_OCTAVE = 4
_MAX_BITS = 40  # of a length


@dataclass(frozen=True, slots=True)
class LengthDistribution:
    """Distribution of the total output tokens of a sample that has not ended.

    `exceeds` and `quantile` answer how much memory is needed. Sums over many samples are of `mean`, since medians of
    skewed lengths sum to too little.

    Attributes:
        starts: Least length of each bin, rising.
        probabilities: Of the bins; they sum to 1.
        end: Greatest length of the last bin.
    """

    starts: tuple[int, ...]
    probabilities: tuple[float, ...]
    end: int

    def mean(self) -> float:
        mean = 0.0
        for index, probability in enumerate(self.probabilities):
            mean += probability * (self.starts[index] + self._last(index)) / 2
        return mean

    def quantile(self, p: float) -> int:
        """Return the least length that an output exceeds with a probability of at most 1 - p.

        Args:
            p: Probability from 0 to 1.
        """
        passed = 0.0
        for index, probability in enumerate(self.probabilities):
            if probability > 0 and passed + probability >= p - 1e-12:
                first, last = self.starts[index], self._last(index)
                within = max(0.0, p - passed) / probability * (last - first + 1)
                return min(last, first + max(0, math.ceil(within - 1e-9) - 1))
            passed += probability
        return self.end

    def exceeds(self, tokens: int) -> float:
        """Return the probability of more than so many tokens."""
        if tokens >= self.end:
            return 0.0
        index = bisect_right(self.starts, tokens) - 1
        if index < 0:
            return 1.0
        first, last = self.starts[index], self._last(index)
        longer = sum(self.probabilities[index + 1 :])
        return min(1.0, longer + self.probabilities[index] * (last - tokens) / (last - first + 1))

    def given(self, so_far: int) -> LengthDistribution:
        """Return the distribution of a sample that has so many tokens and goes on.

        Beyond `end`, which the sample has outlived, the answer is the next length.
        """
        if so_far < self.starts[0]:
            return self
        if (left := self.exceeds(so_far)) <= 0.0:
            return point(so_far + 1)
        index = bisect_right(self.starts, so_far + 1) - 1
        first, last = self.starts[index], self._last(index)
        head = self.probabilities[index] * (last - so_far) / (last - first + 1)
        rest = (head, *self.probabilities[index + 1 :])
        starts = (so_far + 1, *self.starts[index + 1 :])
        return LengthDistribution(starts, tuple(one / left for one in rest), self.end)

    def _last(self, index: int) -> int:
        """Return the greatest length of a bin."""
        return self.starts[index + 1] - 1 if index + 1 < len(self.starts) else self.end


class PredictedLength(Struct, frozen=True, gc=False):
    """Probabilities of the tokens that a sample still gets, as a probe of hidden states answers.

    Attributes:
        sequence_id: Number of the sequence.
        so_far: Output tokens that it had.
        probabilities: Of the bins of `REMAINING_STARTS`.
    """

    sequence_id: Count
    so_far: Count
    probabilities: tuple[float, ...]


class EndedOutput(Struct, frozen=True, gc=False):
    """End of an output, from which a probe learns.

    Attributes:
        sequence_id: Number of the sequence.
        tokens: Of the output.
        complete: Whether it ended by itself; otherwise max_tokens cut it. None: it was aborted, or failed.
    """

    sequence_id: Count
    tokens: Count
    complete: bool | None


@lru_cache(maxsize=4096)
def point(tokens: int) -> LengthDistribution:
    """Return the distribution of a length that is known."""
    return LengthDistribution((tokens,), (1.0,), tokens)


@lru_cache(maxsize=4096)
def uniform(first: int, last: int) -> LengthDistribution:
    """Return the distribution in which all lengths from `first` to `last` are equally likely."""
    return LengthDistribution((first,), (1.0,), max(first, last))


def of_weights(weights: Sequence[float], max_output_tokens: int) -> LengthDistribution:
    """Return the distribution that is proportional to weights of logarithmic bins.

    Args:
        weights: Of bins 0, 1, 2, … (`bin_of`), not all zero, and zero where no whole
            number lies in the bin. Those beyond the bound count for the bound.
        max_output_tokens: Bound of the length.
    """
    count = min(len(weights), bin_of(max_output_tokens) + 1)
    bins = [index for index in range(count) if bin_start(index) < bin_start(index + 1)]
    starts, kept = [bin_start(index) for index in bins], [weights[index] for index in bins]
    end = min(max_output_tokens, bin_start(count) - 1)
    if (longer := sum(weights[count:])) > 0:
        if starts[-1] < max_output_tokens:
            starts.append(max_output_tokens)
            kept.append(0.0)
        kept[-1] += longer
        end = max_output_tokens
    if not any(kept):
        return point(max_output_tokens)
    while kept[-1] <= 0.0:
        end = starts.pop() - 1
        kept.pop()
    total, first = sum(kept), next(index for index, weight in enumerate(kept) if weight > 0)
    return LengthDistribution(tuple(starts[first:]), tuple(one / total for one in kept[first:]), end)


def of_remaining(probabilities: Sequence[float], max_output_tokens: int, so_far: int) -> LengthDistribution:
    """Return the distribution of a sample that has `so_far` tokens, from probabilities of the tokens that follow.

    Args:
        probabilities: Of the bins of `REMAINING_STARTS`; later ones are 0. Not all zero.
        max_output_tokens: Bound of the length, more than `so_far`.
        so_far: Output tokens.
    """
    most, total = max_output_tokens - so_far, sum(probabilities)
    count = min(len(probabilities), bisect_right(REMAINING_STARTS, most))
    starts = [so_far + start for start in REMAINING_STARTS[:count]]
    kept = [one / total for one in probabilities[:count]]
    longer = sum(probabilities[count:]) / total
    first, end = REMAINING_STARTS[count - 1], max_output_tokens
    if count < len(REMAINING_STARTS):
        behind = REMAINING_STARTS[count]
        if most < behind - 1:  # the bound lies within the last bin
            below = kept[-1] * (most - first) / (behind - first)
            longer, kept[-1] = longer + kept[-1] - below, below
        end = so_far + behind - 1
    if longer > 0 and starts[-1] < max_output_tokens:
        return LengthDistribution((*starts, max_output_tokens), (*kept, longer), max_output_tokens)
    kept[-1] += longer
    return LengthDistribution(tuple(starts), tuple(kept), min(end, max_output_tokens))


def bin_of(length: int) -> int:
    """Return the logarithmic bin of a length."""
    return int(math.log2(max(1, length)) * BINS_PER_OCTAVE)


def bin_start(index: int) -> int:
    """Return the least length of a bin, or of the next one where no whole number lies in it."""
    return _STARTS[min(index, len(_STARTS) - 1)]


def _bin_starts() -> list[int]:
    starts = []
    for index in range(_MAX_BITS * BINS_PER_OCTAVE):
        start = max(1, math.floor(2 ** (index / BINS_PER_OCTAVE)) - 1)
        while bin_of(start) < index:
            start += 1
        starts.append(start)
    return starts


_STARTS = _bin_starts()

# Least remaining length of each bin of a probe's answer, two to an octave: 1, 2, 3, 4, 6, 8, 12, …, 131,072.
REMAINING_STARTS = tuple(sorted({math.ceil(2 ** (half / 2)) for half in range(2 * 17 + 1)}))
