"""The texts of a measurement: token ids of lengths that are lognormal, and when they come.

It imports numpy alone, so that runners of other environments may use it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

FIRST_ID = 1000  # below are a vocabulary's special tokens
BEGIN, END = 101, 102  # what stands around a text


@dataclass(frozen=True)
class Lengths:
    """median tokens, spread (of the logarithm), and the longest."""

    median: float
    spread: float
    longest: int


TAILS = {"usual": Lengths(48, 0.5, 256), "heavy": Lengths(32, 1.1, 512)}


def texts(count: int, lengths: Lengths, vocabulary: int, seed: int) -> list[np.ndarray]:
    """int64 token ids of each."""
    chance = np.random.default_rng(seed)
    drawn = chance.lognormal(np.log(lengths.median), lengths.spread, count)
    sizes = np.clip(np.rint(drawn), 3, lengths.longest).astype(int)
    return [np.array([BEGIN, *chance.integers(FIRST_ID, vocabulary, size - 2), END], np.int64) for size in sizes]


def arrivals(count: int, rate: float, seed: int) -> np.ndarray:
    """Seconds at which they come, a Poisson process of `rate` a second."""
    return np.cumsum(np.random.default_rng(seed).exponential(1 / rate, count))
