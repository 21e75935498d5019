"""Synthetic workloads: lengths with heavy tails, arrivals, tenants. Seeded, so that every run gets the same."""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import count, takewhile

from inflight.core.types.request import Request
from inflight.core.types.sampling import SamplingParams
from inflight.workload.arrivals import Gamma, Poisson
from inflight.workload.lengths import Lognormal


def lognormal(rng: random.Random, p50: float, p99: float, most: int) -> int:
    """A length with this median and 99th percentile, at least 1 and at most `most`."""
    return Lognormal(p50, p99, most).draw(rng)


def poisson(rng: random.Random, rate: float) -> Iterator[float]:
    """Arrival times in seconds from 0, `rate` per second on average."""
    return Poisson(rate).times(rng)


def gamma(rng: random.Random, rate: float, shape: float) -> Iterator[float]:
    """Arrival times with gamma-distributed gaps; the smaller the shape, the more they clump (1 is Poisson)."""
    return Gamma(rate, shape).times(rng)


def bursts(rng: random.Random, rate: float, gap: float) -> Iterator[float]:
    """On average `rate` per second, all of them in a quarter of the time: a burst starts about every `gap` seconds."""
    for number in count():
        start = gap * (number + rng.uniform(0.0, 0.7))
        yield from (start + at for at in takewhile(lambda at: at < gap / 4, poisson(rng, 4 * rate)))


def prompt(rng: random.Random, length: int, vocab_size: int) -> tuple[int, ...]:
    return tuple(rng.randrange(3, vocab_size) for _ in range(length))


def heavy_tailed(
    number: int,
    vocab_size: int,
    seed: int = 0,
    rate: float | None = None,
    max_tokens: int = 1024,
    max_prompt: int = 1000,
) -> list[Request]:
    """Prompts p50 40, p99 400; forced outputs p50 60, p99 500. All at once, or as Poisson arrivals of this rate."""
    rng = random.Random(seed)
    times = poisson(random.Random(seed + 1), rate) if rate is not None else (0.0 for _ in count())
    return [
        Request(
            request_id=str(index),
            prompt_token_ids=prompt(rng, lognormal(rng, 40, 400, max_prompt), vocab_size),
            params=SamplingParams(temperature=0, max_tokens=max_tokens, ignore_eos=True),
            arrival=next(times),
            forced_output_tokens=lognormal(rng, 60, 500, max_tokens),
        )
        for index in range(number)
    ]
