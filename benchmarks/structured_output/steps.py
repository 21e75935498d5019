"""Measure what a step takes whose rows follow a schema, over the same step of free text: all of its rows, or one of
them.

Engines around the same weights take turns, leg by leg; the ratio is taken within each turn.
"""

from __future__ import annotations

import random
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.comparison import log_line
from benchmarks.engines import Model
from benchmarks.results import table
from benchmarks.speculation.legs import with_interval
from benchmarks.structured_output.engine import Decoding
from benchmarks.structured_output.schemas import endless
from inflight.core.types.sampling import GrammarStats
from inflight.execution.grammars.compiled_grammars import CompiledGrammars
from inflight.metrics.confidence import Estimate, paired_ratio

LEG, SETTLING = 16, 16  # steps
ASKED = 1.03


@dataclass(slots=True)
class Case:
    """bound: rows that follow the schema. seconds: means of the legs' steps. masks, mask_ms, wait_ms: of its steps."""

    bound: int
    engine: Decoding
    seconds: list[float]
    mask_ms: float = 0.0
    wait_ms: float = 0.0


def measured(model: Model, rows: int, legs: int, compiled: CompiledGrammars) -> list[Case]:
    """Free text, one row bound, all of them."""
    steps, schema = legs * LEG + SETTLING, endless()
    cases = [
        Case(bound, Decoding(model.beside(), rows, steps, [schema] * bound, compiled), []) for bound in (0, 1, rows)
    ]
    for case in cases:
        case.engine.steps(SETTLING)
    order = random.Random(0)
    for leg in range(legs):
        for case in order.sample(cases, len(cases)):
            before = case.engine.stats()
            case.seconds.append(statistics.fmean(case.engine.steps(LEG)))
            _add(case, before, case.engine.stats(), legs * LEG)
        log_line(
            f"{model.name}: turn {leg + 1} of {legs}, " + ", ".join(f"{1e3 * one.seconds[-1]:.1f} ms" for one in cases)
        )
    return cases


def _add(case: Case, before: GrammarStats, after: GrammarStats, steps: int) -> None:
    case.mask_ms += 1e3 * (after.mask_seconds - before.mask_seconds) / steps
    case.wait_ms += 1e3 * (after.wait_seconds - before.wait_seconds) / steps


def report(models: Sequence[Model], rows: int, legs: int, compiled: CompiledGrammars) -> str:
    lines: list[list[object]] = []
    for model in models:
        free, *bound = measured(model, rows, legs, compiled)
        lines.append([model.name, "none", f"{1e3 * statistics.fmean(free.seconds):.1f}", "1", "0", "0"])
        for case in bound:
            lines.append(
                [
                    model.name,
                    case.bound,
                    f"{1e3 * statistics.fmean(case.seconds):.1f}",
                    with_interval(_over(case, free)),
                    f"{case.mask_ms:.2f}",
                    f"{case.wait_ms:.2f}",
                ]
            )
    head = ["model", "rows that follow a schema", "a step, ms", "over free text", "masks, ms a step", "waited for, ms"]
    about = (
        f"{rows} rows that decode at temperature 1 on random weights over 151,936 tokens, in turns of {LEG} steps, "
        f"{legs} of each. The schema is a list of nested records; each row stands elsewhere in it, and what "
        "it forces is not drafted here: a step is a token a row. Ratios of mean step "
        f"times within each turn, with a 95 % interval; at most {ASKED} is asked of all rows, and of one row 1."
    )
    return f"{about}\n\n{table(head, lines)}"


def _over(case: Case, free: Case) -> Estimate:
    found = paired_ratio(case.seconds, free.seconds)
    assert found is not None
    return found
