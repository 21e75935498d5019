"""Generate what the engines are sent, as token ids, the same for all; nothing that a prefix cache or a tokenizer could
help.

Seeded.
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Sequence

from benchmarks.peers.stepping import Work
from benchmarks.workloads import poisson

_FIRST_ID, _LAST_ID = 256, 32000  # no bytes and no special tokens, in any vocabulary
_SEED = 1234


def alike(number: int, prompt: int, output: int) -> list[Work]:
    """Return requests of these lengths, all at once."""
    rng = random.Random(f"{_SEED} {number} {prompt}")
    return [Work(0.0, _ids(rng, prompt), output) for _ in range(number)]


def mixed(number: int = 64) -> list[Work]:
    """All at once, with lengths as a chat server sees them: prompts lognormal around 160 tokens, outputs around 100.

    64 of them are prompts of 24 to 1,020 tokens, 13,656 in all, and outputs of 13 to 455, 9,013 in all.
    """
    rng = random.Random(_SEED)
    lengths = [(_length(rng, 160, 16, 1024), _length(rng, 100, 8, 512)) for _ in range(number)]
    return [Work(0.0, _ids(rng, prompt), output) for prompt, output in lengths]


def arriving(works: Sequence[Work], rate: float) -> list[Work]:
    """The same as Poisson arrivals, `rate` a second; the gaps are the same at every rate but for that factor."""
    times = itertools.islice(poisson(random.Random(_SEED), 1.0), len(works))
    return [Work(time / rate, one.prompt, one.output_tokens) for time, one in zip(times, works, strict=True)]


def _ids(rng: random.Random, length: int) -> list[int]:
    return [rng.randrange(_FIRST_ID, _LAST_ID) for _ in range(length)]


def _length(rng: random.Random, median: float, least: int, most: int) -> int:
    """Lognormal with sigma 1, drawn again where it falls outside."""
    while not least <= (length := round(math.exp(rng.gauss(math.log(median), 1.0)))) <= most:
        pass
    return length
