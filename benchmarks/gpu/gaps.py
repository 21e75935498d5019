"""Measure what a device does from the first kernel of some decode steps to the last: how long it computes, how long it
waits.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import NamedTuple

import torch

from benchmarks.gpu.model import DrawnModel
from benchmarks.gpu.ran import of_decodes
from benchmarks.gpu.steps import Stepper
from benchmarks.results import table

_LONG = 10.0  # microseconds: longer than what lies between two kernels of one graph


class Span(NamedTuple):
    """Microseconds on the device's clock."""

    start: float
    end: float


def between_steps(model: DrawnModel, rows: Sequence[int], context: int, steps: int) -> str:
    if not torch.cuda.is_available():
        return "There are no kernels to see: there is no GPU."
    stepper, cells = Stepper(model), []
    for count in rows:
        ran, all_steps = of_decodes(stepper, count, context, steps)
        spans = [Span(one.start, one.end) for one in ran]
        busy = merged(spans)
        whole, waits = busy[-1].end - busy[0].start, [after.start - before.end for before, after in pairwise(busy)]
        computing = sum(one.end - one.start for one in busy)
        long = [wait for wait in waits if wait > _LONG]
        cells.append(
            [
                count,
                f"{len(spans) / all_steps:,.0f}",
                f"{computing / whole:.1%}",
                f"{(whole - computing) / all_steps:,.0f}",
                f"{sum(long) / all_steps:,.0f}",
                f"{max(waits, default=0):,.0f}",
            ]
        )
    head = ["rows", "kernels a step", "computes", "waits, µs a step", f"in waits over {_LONG:.0f} µs", "longest, µs"]
    return table(head, cells)


def merged(spans: Iterable[Span]) -> list[Span]:
    """Spans that touch or overlap are one."""
    found: list[Span] = []
    for span in sorted(spans):
        if found and span.start <= found[-1].end:
            found[-1] = Span(found[-1].start, max(found[-1].end, span.end))
        else:
            found.append(span)
    return found
