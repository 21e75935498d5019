"""Measure what a decode step takes whose rows are spread over adapters, over the same step of the model alone.

Engines around the same weights take turns, leg by leg; the ratio of tokens per second is taken within each turn.
"""

from __future__ import annotations

import random
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.adapters.decoding import Decoding
from benchmarks.comparison import log_line
from benchmarks.engines import Model
from benchmarks.results import table
from benchmarks.speculation.legs import with_interval
from inflight.core.types.sampling import Adapter
from inflight.metrics.confidence import paired_ratio

LEG, SETTLING = 8, 4  # steps
ASKED = 0.9


@dataclass(slots=True)
class Case:
    """rates: tokens per second of each leg."""

    adapters: int
    engine: Decoding
    rates: list[float]


def measured(model: Model, rows: int, legs: int, adapters: Sequence[Adapter], counts: Sequence[int]) -> list[Case]:
    """counts: of adapters, of which each row has one; 0: none has."""
    steps = legs * LEG + SETTLING
    cases = [Case(count, Decoding(model.beside(), rows, steps, adapters[:count]), []) for count in counts]
    for case in cases:
        case.engine.steps(SETTLING)
    order = random.Random(0)
    for leg in range(legs):
        for case in order.sample(cases, len(cases)):
            case.rates.append(rows * LEG / sum(case.engine.steps(LEG)))
        log_line(f"{model.name}: turn {leg + 1} of {legs}, " + ", ".join(f"{one.rates[-1]:.0f} tok/s" for one in cases))
    return cases


def report(model: Model, rows: int, legs: int, adapters: Sequence[Adapter], counts: Sequence[int], rank: int) -> str:
    cases = measured(model, rows, legs, adapters, (0, *counts))
    alone, *others = cases
    lines: list[list[object]] = [["none", f"{statistics.fmean(alone.rates):.0f}", "1"]]
    for case in others:
        ratio = paired_ratio(case.rates, alone.rates)
        assert ratio is not None
        lines.append([case.adapters, f"{statistics.fmean(case.rates):.0f}", with_interval(ratio)])
    about = (
        f"{model.name}: {rows} rows that decode, spread evenly over adapters of rank {rank} for every matrix of every "
        f"layer; turns of {LEG} steps, {legs} of each. Ratios within each turn, with a 95 % interval; at least {ASKED} "
        "is asked with 8 adapters."
    )
    return f"{about}\n\n{table(['adapters', 'tokens/s', 'over the model alone'], lines)}"
