"""Measure what steps lose in which a request arrives with a new schema.

Two engines of decoding rows take turns; with each step a newcomer arrives, in the one with a new schema, in the other
with the same prompt and none. What is compared is the 99th percentile of all steps; its interval is from resampled
turns.
"""

from __future__ import annotations

import random
import statistics
from collections.abc import Sequence

from benchmarks.comparison import log_line
from benchmarks.engines import Model
from benchmarks.results import table
from benchmarks.speculation.legs import with_interval
from benchmarks.structured_output.engine import Decoding
from benchmarks.structured_output.schemas import never_seen
from inflight.execution.grammars.compiled_grammars import CompiledGrammars
from inflight.metrics.confidence import Estimate

LEG, SETTLING = 16, 8  # steps
SHARE, ASKED = 0.99, 1.05
DRAWS = 2000

Legs = list[list[float]]


def measured(model: Model, rows: int, legs: int, compiled: CompiledGrammars) -> tuple[Legs, Legs]:
    """Seconds of steps, by turn: with new schemas, and without."""
    steps, numbers = 2 * (legs * LEG + SETTLING), iter(range(10**6))
    new, free = (Decoding(model.beside(), rows, steps, [], compiled) for _ in range(2))
    for one in (new, free):
        one.steps(SETTLING)
    found: tuple[Legs, Legs] = ([], [])
    for leg in range(legs):
        for is_new, one in ((True, new), (False, free))[:: -1 if leg % 2 else 1]:
            seconds = []
            for _ in range(LEG):
                one.offer(never_seen(next(numbers)) if is_new else None)
                seconds.append(one.step())
            found[not is_new].append(seconds)
            while one.under_way:  # nothing of one turn is compiled in the other's
                one.step()
        log_line(f"{model.name}: turn {leg + 1} of {legs}, worst steps {_worst(found[0])} and {_worst(found[1])}")
    return found


def report(models: Sequence[Model], rows: int, legs: int, compiled: CompiledGrammars) -> str:
    lines: list[list[object]] = []
    for model in models:
        new, free = measured(model, rows, legs, compiled)
        means = [statistics.fmean(statistics.fmean(leg) for leg in side) for side in (new, free)]
        tails = [1e3 * tail(side) for side in (new, free)]
        ratio = with_interval(tail_ratio(new, free))
        lines.append(
            [model.name, *(f"{1e3 * one:.1f}" for one in means), *(f"{one:.1f}" for one in tails[::-1]), ratio]
        )
    head = ["model", "new schemas: a step, ms", "none", "p99 of a step without, ms", "with new schemas", "over without"]
    about = (
        f"{rows} rows that decode, and a newcomer with each step; in the one engine each has a schema of 20 properties "
        f"that was never there before (about {len(never_seen(0).source):,} characters), in the other none. Turns of "
        f"{LEG} steps, {legs} of each; at most {ASKED} is asked of the p99."
    )
    return f"{about}\n\n{table(head, lines)}"


def tail(legs: Legs) -> float:
    ordered = sorted(second for leg in legs for second in leg)
    return ordered[min(len(ordered) - 1, int(SHARE * len(ordered)))]


def tail_ratio(new: Legs, free: Legs) -> Estimate:
    """With the middle 95 % of the ratios of turns that were drawn again and again."""
    chance, turns = random.Random(0), range(len(new))
    whole = tail(new) / tail(free)
    if len(new) < 3:
        return Estimate(whole, None, None, len(new))
    found = []
    for _ in range(DRAWS):
        drawn = chance.choices(turns, k=len(turns))
        found.append(tail([new[turn] for turn in drawn]) / tail([free[turn] for turn in drawn]))
    found.sort()
    return Estimate(whole, found[int(0.025 * DRAWS)], found[int(0.975 * DRAWS)], len(new))


def _worst(legs: Legs) -> str:
    return f"{1e3 * max(legs[-1]):.1f} ms"
