"""Time to the first token beside decodes that are drafted for, with the prefix cache and without.

The requests share a system prompt. Four engines around the same weights run in turns, leg by leg; times to the first
token of the one with speculation are compared with those of the one without.
"""

from __future__ import annotations

import statistics
from dataclasses import replace

from benchmarks.comparison import tell
from benchmarks.engines import Model
from benchmarks.results import table
from benchmarks.speculation.contest import OFF, ON
from benchmarks.speculation.corpus import Pair, Part, read
from benchmarks.speculation.engine import MODEL_LEN, ScriptedEngine, blocks, engine
from benchmarks.speculation.legs import Leg, in_turns, speed_up, told
from inflight.engine.clock import Clock
from inflight.execution.backends.protocol import Quantization
from inflight.execution.drafters.suffix import SuffixDrafter

SYSTEM, USER, ANSWER = 256, 128, 64  # tokens; of the corpus' texts
AT_LEAST = 0.99


def pairs(part: Part) -> list[Pair]:
    """Prompts that begin alike."""
    texts = read("repeating", part)
    system = texts[0].answer[:SYSTEM]
    return [replace(one, prompt=system + one.prompt[-USER:], answer=one.answer[:ANSWER]) for one in texts]


def report(model: str, quantization: Quantization, legs: int, part: Part, threads: int | None, clock: Clock) -> str:
    weights = Model(model, blocks(4), MODEL_LEN, quantization, threads)
    rows = [_row(weights, number, caching, legs, part, clock) for number in (1, 4) for caching in (True, False)]
    said = (
        f"{weights.name}; system prompt of {SYSTEM} tokens, {USER} of each request, {ANSWER} of its answer. Mean "
        f"time to the first token with `--speculation off` over that with `auto`, {legs} legs in turns; 95 % "
        f"intervals; asked: ≥ {AT_LEAST}."
    )
    return f"{said}\n\n{table(['rows', 'prefix cache', 'TTFT off, ms (median)', 'off over auto'], rows)}"


def _row(model: Model, rows: int, caching: bool, legs: int, part: Part, clock: Clock) -> list[object]:
    texts = pairs(part)
    with_drafts = engine(model.beside(), rows, texts, ON, SuffixDrafter(), clock, caching)
    without = engine(model.beside(), rows, texts, OFF, None, clock, caching)
    for one in (with_drafts, without):
        one.run_tokens(rows, 20 * ANSWER)  # what the controller learns first
    ones, others = in_turns(lambda: _leg(with_drafts, rows), lambda: _leg(without, rows), legs)
    found = speed_up(ones, others)
    tell(f"{model.name}, {rows} rows, prefix cache {caching}: {told(found)}")
    return [rows, "on" if caching else "off", f"{statistics.median(without.ttfts) * 1e3:.1f}", told(found)]


def _leg(engine: ScriptedEngine, rows: int) -> Leg:
    """First tokens in the place of tokens, and their times."""
    had = len(engine.ttfts)
    engine.run_tokens(rows, engine.tokens + 4 * rows * ANSWER)
    times = engine.ttfts[had:]
    return Leg(sum(times), len(times))
