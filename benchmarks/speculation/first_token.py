"""Time to the first token beside decodes that are drafted for, with the prefix cache and without.

The requests share a system prompt. Two engines around the same weights run in turns, leg by leg; times to the first
token of the one with speculation are compared with those of the one without. Requests come to both at the same moments
of their own seconds, whatever they are at: were so many kept running, the faster engine would have more of them, which
stand in each other's way.
"""

from __future__ import annotations

import random
import statistics
from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate

from benchmarks.comparison import log_line
from benchmarks.engines import Model
from benchmarks.results import table
from benchmarks.speculation.contest import OFF, ON
from benchmarks.speculation.corpus import Pair, Part, read
from benchmarks.speculation.engine import MODEL_LEN, ScriptedEngine, blocks, engine
from benchmarks.speculation.legs import Leg, Run, in_turns, speed_up, with_interval
from inflight.engine.clock import Clock
from inflight.execution.backends.protocol import Quantization
from inflight.execution.drafters.suffix import SuffixDrafter

SYSTEM, USER, ANSWER = 256, 128, 64  # tokens; of the corpus' texts
MAX_ROWS = 16  # more than ever run
BUSY = 0.8  # requests a second, of those that the engine without speculation answers with so many rows running
AT_LEAST = 0.99


def pairs(part: Part) -> list[Pair]:
    """Prompts that begin alike."""
    texts = read("repeating", part)
    system = texts[0].answer[:SYSTEM]
    return [replace(one, prompt=system + one.prompt[-USER:], answer=one.answer[:ANSWER]) for one in texts]


def report(model: str, quantization: Quantization, legs: int, part: Part, threads: int | None, clock: Clock) -> str:
    weights = Model(model, blocks(MAX_ROWS), MODEL_LEN, quantization, threads)
    rows = [_row(weights, number, caching, legs, part, clock) for number in (1, 4) for caching in (True, False)]
    said = (
        f"{weights.name}; system prompt of {SYSTEM} tokens, {USER} of each request, {ANSWER} of its answer. Requests "
        f"come at random moments, the same ones to both engines, {BUSY:.0%} as many a second as are answered without "
        "speculation where so many rows are kept running. Mean time to the first token with `--speculation off` over "
        f"that with `auto`, {legs} legs in turns; 95 % intervals; asked: ≥ {AT_LEAST}."
    )
    return f"{said}\n\n{table(['rows', 'prefix cache', 'TTFT off, ms (median)', 'off over auto'], rows)}"


def _row(model: Model, rows: int, caching: bool, legs: int, part: Part, clock: Clock) -> list[object]:
    texts = pairs(part)
    with_drafts = engine(model.beside(), MAX_ROWS, texts, ON, SuffixDrafter(), clock, caching)
    without = engine(model.beside(), MAX_ROWS, texts, OFF, None, clock, caching)
    for one in (with_drafts, without):
        one.run_tokens(rows, 20 * ANSWER)  # what the controller learns first
    each_second = BUSY * without.tokens / (without.seconds * ANSWER)
    rng = random.Random(rows)
    gaps = [[rng.expovariate(each_second) for _ in range(4 * rows)] for _ in range(legs)]
    ones, others = in_turns(_legs(with_drafts, gaps), _legs(without, gaps), legs)
    found = speed_up(ones, others)
    log_line(f"{model.name}, {rows} rows, prefix cache {caching}: {with_interval(found)}")
    return [rows, "on" if caching else "off", f"{statistics.median(without.ttfts) * 1e3:.1f}", with_interval(found)]


def _legs(engine: ScriptedEngine, gaps: Sequence[Sequence[float]]) -> Run:
    """Leg by leg: first tokens in the place of tokens, and their times. gaps: seconds between requests, of each leg."""
    left = iter(gaps)

    def leg() -> Leg:
        had = len(engine.ttfts)
        engine.run_arrivals(list(accumulate(next(left), initial=engine.seconds))[1:])
        times = engine.ttfts[had:]
        return Leg(sum(times), len(times))

    return leg
