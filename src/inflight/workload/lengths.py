"""Lengths of prompts and outputs in tokens: fixed, or drawn from a distribution.

`str()` of a distribution is the form that `parse_lengths` reads.
"""

from __future__ import annotations

import csv
import math
from bisect import bisect_right
from dataclasses import dataclass, field
from itertools import accumulate
from pathlib import Path
from random import Random
from statistics import NormalDist
from typing import Protocol

from inflight.counted import UNBOUNDED, cause_of
from inflight.workload.workload import WorkloadError

FORMS = (
    "N, uniform:MIN-MAX, lognormal:P50:P99, lognormal:P50:P99:MAX, histogram:FILE (lines of `tokens,weight`), or "
    "histogram:TOKENS=WEIGHT,…"
)
STRATA = 512  # equal shares of a distribution; of fewer, long prompts would come too regularly
_INSIDE = 1e-9  # of a share, that a draw keeps away from its ends
_NORMAL = NormalDist()
_Z99 = 2.3263478740408408  # the standard normal distribution's 99th percentile


class Lengths(Protocol):
    def draw(self, rng: Random) -> int:
        """Draw a length of at least 1 token."""

    def at(self, share: float) -> int:
        """Return the length that this share of the lengths does not exceed, above 0 and below 1."""


@dataclass(frozen=True, slots=True)
class Fixed:
    """Always the same length."""

    tokens: int

    def __post_init__(self) -> None:
        _check("length", self.tokens)

    def __str__(self) -> str:
        return str(self.tokens)

    def draw(self, rng: Random) -> int:
        return self.tokens

    def at(self, share: float) -> int:
        return self.tokens


@dataclass(frozen=True, slots=True)
class Uniform:
    """Every whole number from min_tokens to max_tokens, both included, equally likely."""

    min_tokens: int
    max_tokens: int

    def __post_init__(self) -> None:
        _check("shortest length", self.min_tokens)
        _check("longest length", self.max_tokens)
        if self.min_tokens > self.max_tokens:
            raise WorkloadError(
                f"Lengths from {self.min_tokens} to {self.max_tokens} leave none; give the smaller one first."
            )

    def __str__(self) -> str:
        return f"uniform:{self.min_tokens}-{self.max_tokens}"

    def draw(self, rng: Random) -> int:
        return rng.randint(self.min_tokens, self.max_tokens)

    def at(self, share: float) -> int:
        return self.min_tokens + math.floor(share * (self.max_tokens - self.min_tokens + 1))


@dataclass(frozen=True, slots=True)
class Lognormal:
    """Median p50 and 99th percentile p99, rounded, at least 1. max_tokens: longer ones are cut to it; None: never."""

    p50: float
    p99: float
    max_tokens: int | None = None

    def __post_init__(self) -> None:
        if not 1 <= self.p50 <= self.p99 <= UNBOUNDED:
            raise WorkloadError(
                f"A lognormal length has p50 {self.p50:g} and p99 {self.p99:g}; give 1 ≤ P50 ≤ P99, in tokens."
            )
        if self.max_tokens is not None:
            _check("longest length", self.max_tokens)

    def __str__(self) -> str:
        return f"lognormal:{self.p50:g}:{self.p99:g}" + ("" if self.max_tokens is None else f":{self.max_tokens}")

    def draw(self, rng: Random) -> int:
        return self._of(rng.gauss(0.0, 1.0))

    def at(self, share: float) -> int:
        return self._of(_NORMAL.inv_cdf(share))

    def _of(self, deviations: float) -> int:
        """Return the length at so many standard deviations of its logarithm."""
        length = max(1, round(self.p50 * math.exp(deviations * math.log(self.p99 / self.p50) / _Z99)))
        return min(length, UNBOUNDED if self.max_tokens is None else self.max_tokens)


@dataclass(frozen=True, slots=True)
class Histogram:
    """Lengths with weights. bins: (tokens, weight), each drawn in proportion to its weight. source: their file."""

    bins: tuple[tuple[int, float], ...]
    source: str = ""
    _sums: list[float] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        for tokens, weight in self.bins:
            _check("length in a histogram", tokens)
            if not 0 <= weight < math.inf:
                raise WorkloadError(f"A histogram gives {tokens} tokens the weight {weight:g}; give a number from 0.")
        sums = list(accumulate(weight for _, weight in self.bins))
        if not sums or not 0 < sums[-1] < math.inf:
            raise WorkloadError(f"A histogram of {len(self.bins)} lengths has no weight above 0; give one at least.")
        object.__setattr__(self, "_sums", sums)

    def __str__(self) -> str:
        return "histogram:" + (self.source or ",".join(f"{tokens}={weight:g}" for tokens, weight in self.bins))

    def draw(self, rng: Random) -> int:
        return rng.choices(self.bins, cum_weights=self._sums)[0][0]

    def at(self, share: float) -> int:
        order = sorted(range(len(self.bins)), key=lambda index: self.bins[index][0])
        sums = list(accumulate(self.bins[index][1] for index in order))
        return self.bins[order[min(bisect_right(sums, share * sums[-1]), len(order) - 1)]][0]


class Stratified:
    """Draws of a distribution that are spread over it: of each STRATA lengths in a row, one lies in each of so many
    equal shares of it, in an order of chance. Figures of a few hundred draws are then nearly those of the distribution,
    its tail's too, and any two lengths may still come in a row."""

    def __init__(self, lengths: Lengths):
        self._lengths = lengths
        self._left: list[int] = []  # shares of the current strata that were not drawn yet

    def __str__(self) -> str:
        return str(self._lengths)

    def draw(self, rng: Random) -> int:
        if not self._left:
            self._left = list(range(STRATA))
            rng.shuffle(self._left)
        return self.at((self._left.pop() + rng.uniform(_INSIDE, 1 - _INSIDE)) / STRATA)

    def at(self, share: float) -> int:
        return self._lengths.at(share)


def parse_lengths(given: str | int) -> Lengths:
    """Read `128`, `uniform:32-512`, `lognormal:40:400`, `lognormal:40:400:1000`, `histogram:FILE` or
    `histogram:9=3,512=1`. Raises WorkloadError."""
    text = str(given).strip()
    name, _, rest = text.partition(":")
    try:
        match name:
            case "uniform":
                low, high = rest.split("-")
                return Uniform(int(low), int(high))
            case "lognormal":
                p50, p99, *limit = rest.split(":")
                return Lognormal(float(p50), float(p99), *map(int, limit))
            case "histogram" if rest:
                return _inline(rest) if "=" in rest else read_histogram(Path(rest))
            case _:
                return Fixed(int(text))
    except WorkloadError:
        raise
    except (ValueError, TypeError):
        raise WorkloadError(f"Lengths {text!r} are of no known form; give {FORMS}.") from None


def read_histogram(path: Path) -> Histogram:
    """Read a file with a line `tokens,weight` for each length, with or without that header. Raises WorkloadError."""
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            rows = [(number, row) for number, row in enumerate(csv.reader(file), 1) if row]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise WorkloadError(
            f"The histogram {path} cannot be read: {cause_of(error)}. Lengths may be {FORMS}."
        ) from None
    if rows and [cell.strip().lower() for cell in rows[0][1]] == ["tokens", "weight"]:
        del rows[0]
    bins = []
    for number, row in rows:
        try:
            tokens, weight = row
            bins.append((int(tokens), float(weight)))
        except ValueError:
            raise WorkloadError(f"{path}, line {number}: {','.join(row)!r} is not `tokens,weight`.") from None
    return Histogram(tuple(bins), str(path))


def _inline(text: str) -> Histogram:
    pairs = (part.split("=") for part in text.split(","))
    return Histogram(tuple((int(tokens), float(weight)) for tokens, weight in pairs))


def _check(name: str, value: int) -> None:
    if not 1 <= value <= UNBOUNDED:
        raise WorkloadError(f"A {name} is {value} tokens; give a whole number from 1 to {UNBOUNDED:,}. Forms: {FORMS}.")
