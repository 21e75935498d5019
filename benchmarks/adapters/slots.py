"""Sixteen adapters over eight slots, under Zipf traffic: how long first tokens wait, over sixteen in sixteen slots.

The same requests at the same times to either engine, one run after the other, in turns.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

from benchmarks.comparison import log_line
from benchmarks.drive import drive
from benchmarks.engines import Model
from benchmarks.results import table
from benchmarks.speculation.legs import with_interval
from inflight.config.engine import EngineSettings
from inflight.config.scheduling import SchedulingSettings
from inflight.core.types.request import Request
from inflight.core.types.sampling import Adapter, SamplingParams
from inflight.metrics.confidence import paired_ratio

PROMPT, OUTPUT = 64, (8, 48)  # tokens
SKEW = 1.0  # of Zipf
ASKED = 1.3


def traffic(adapters: Sequence[Adapter], seconds: float, rate: float, seed: int, vocab_size: int) -> list[Request]:
    chance, now = random.Random(seed), 0.0
    requests: list[Request] = []
    weights = [1 / (place + 1) ** SKEW for place in range(len(adapters))]
    while (now := now + chance.expovariate(rate)) < seconds:
        params = SamplingParams(temperature=1.0, max_tokens=chance.randint(*OUTPUT), ignore_eos=True)
        requests.append(
            Request(
                request_id=str(len(requests)),
                prompt_token_ids=tuple(chance.choices(range(vocab_size - 1), k=PROMPT)),
                params=params,
                arrival=now,
                adapter=chance.choices(adapters, weights)[0],
            )
        )
    return requests


def measured(
    model: Model, adapters: Sequence[Adapter], slots: Sequence[int], turns: int, seconds: float, rate: float
) -> list[list[float]]:
    """By number of slots the p99 of time to first token in each turn, seconds."""
    found: list[list[float]] = [[] for _ in slots]
    settings = EngineSettings(max_model_len=256, num_blocks=1024, max_num_seqs=32, max_num_batched_tokens=256)
    for turn in range(turns):
        order = list(enumerate(slots))
        for place, count in order[:: -1 if turn % 2 else 1]:
            loop = model.loop(settings, SchedulingSettings(speculation="off"), adapter_slots=count)
            run = drive(loop, traffic(adapters, seconds, rate, turn, model.vocab_size))
            times = sorted(run.ttfts())
            found[place].append(times[min(len(times) - 1, int(0.99 * len(times)))])
            loop.close()
        log_line(f"turn {turn + 1} of {turns}: p99 of first tokens {', '.join(f'{one[-1]:.2f} s' for one in found)}")
    return found


def report(
    model: Model, adapters: Sequence[Adapter], turns: int, seconds: float, rates: Sequence[float], rank: int
) -> str:
    slots = (len(adapters) // 2, len(adapters))
    lines: list[list[object]] = []
    for rate in rates:
        few, all_there = measured(model, adapters, slots, turns, seconds, rate)
        ratio = paired_ratio(few, all_there)
        assert ratio is not None
        lines.append([f"{rate:g}", f"{sum(all_there) / turns:.2f}", f"{sum(few) / turns:.2f}", with_interval(ratio)])
    about = (
        f"{model.name}: {len(adapters)} adapters of rank {rank}, asked for by Zipf's law (exponent {SKEW:g}) for "
        f"{seconds:g} s, {PROMPT} tokens in and {OUTPUT[0]} to {OUTPUT[1]} out; {turns} turns of each, every one with "
        f"requests of its own. The 99th percentile of the time to the first token; at most {ASKED} is asked."
    )
    head = ["requests a second", f"{slots[1]} slots, s", f"{slots[0]} slots, s", "over"]
    return f"{about}\n\n{table(head, lines)}"
