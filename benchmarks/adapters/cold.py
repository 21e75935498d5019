"""Measure what steps lose while an adapter is loaded for the first time.

Two engines of decoding rows take turns; in each leg one newcomer arrives in either, in the one with an adapter that is
not there, in the other with one that is. What is compared is the 99th percentile of all steps; its interval is from
resampled turns.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from benchmarks.adapters.decoding import Decoding
from benchmarks.comparison import log_line
from benchmarks.engines import Model
from benchmarks.results import table
from benchmarks.speculation.legs import with_interval
from benchmarks.structured_output.arrivals import tail, tail_ratio
from inflight.core.types.sampling import Adapter

LEG, SETTLING = 12, 4  # steps
LONGEST = 200  # until a newcomer is served
ASKED = 1.05

Legs = list[list[float]]


def measured(model: Model, rows: int, legs: int, adapters: Sequence[Adapter]) -> tuple[Legs, Legs, list[int]]:
    """Seconds of steps, by turn: with cold adapters, and with warm ones; and steps until a cold one has answered."""
    steps = legs * LONGEST // 4 + SETTLING
    warm, *others = adapters
    cold, beside = (Decoding(model.beside(), rows, steps, [warm], slots=2) for _ in range(2))
    for one in (cold, beside):
        one.steps(SETTLING)
    found: tuple[Legs, Legs] = ([], [])
    waited: list[int] = []
    for leg in range(legs):
        for is_cold, one in ((True, cold), (False, beside))[:: -1 if leg % 2 else 1]:
            one.offer(others[leg % len(others)] if is_cold else warm)
            seconds = [one.step()]
            while len(seconds) < LEG or (one.ended < one.offered and len(seconds) < LONGEST):
                if is_cold and one.ended == one.offered and len(waited) == leg:
                    waited.append(len(seconds))
                seconds.append(one.step())
            if is_cold and len(waited) == leg:
                waited.append(len(seconds))
            found[not is_cold].append(seconds)
        log_line(f"{model.name}: turn {leg + 1} of {legs}, {waited[-1]} steps until a cold adapter answered")
    return (*found, waited)


def report(model: Model, rows: int, legs: int, adapters: Sequence[Adapter], rank: int) -> str:
    cold, warm, waited = measured(model, rows, legs, adapters)
    means = [1e3 * statistics.fmean(statistics.fmean(leg) for leg in side) for side in (cold, warm)]
    tails = [1e3 * tail(side) for side in (cold, warm)]
    line = [
        f"{means[1]:.1f}",
        f"{means[0]:.1f}",
        f"{tails[1]:.1f}",
        f"{tails[0]:.1f}",
        with_interval(tail_ratio(cold, warm)),
        f"{statistics.median(waited):.0f}",
    ]
    head = ["a step, ms", "while one is loaded", "p99, ms", "while one is loaded", "over", "steps until it answers"]
    about = (
        f"{model.name}: {rows} rows that decode with an adapter of rank {rank}, and in each of {legs} turns a "
        f"newcomer, whose adapter is cold, or is theirs. At most {ASKED} is asked of the p99 of steps."
    )
    return f"{about}\n\n{table(head, [line])}"
