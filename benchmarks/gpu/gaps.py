"""What a device does from the first kernel of some decode steps to the last: how long it computes, how long it waits.

Knows PyTorch's profiler; a wait that is short is one of the hardware's own between kernels, a long one is the host's.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import NamedTuple

import torch
from torch.profiler import ProfilerActivity, profile

from benchmarks.gpu.model import DrawnModel
from benchmarks.gpu.steps import WARM_STEPS, Stepper
from benchmarks.results import table

_LONG = 10.0  # microseconds: longer than what lies between two kernels of one graph


class Span(NamedTuple):
    """Microseconds on the device's clock."""

    start: float
    end: float


def between_steps(model: DrawnModel, rows: Sequence[int], context: int, steps: int) -> str:
    if not torch.cuda.is_available():
        return "There are no kernels to see: there is no GPU."
    cells = []
    for count in rows:
        spans = _profiled(model, count, context, steps)
        busy = merged(spans)
        whole, waits = busy[-1].end - busy[0].start, [after.start - before.end for before, after in pairwise(busy)]
        computing = sum(one.end - one.start for one in busy)
        long = [wait for wait in waits if wait > _LONG]
        all_steps = WARM_STEPS + steps
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


def _profiled(model: DrawnModel, rows: int, context: int, steps: int) -> list[Span]:
    """Of all that ran on the device in so many steps, without those that compile and capture."""
    stepper = Stepper(model)
    stepper.decode_seconds(rows, context, 2)
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as recorded:
        stepper.decode_seconds(rows, context, steps)
        torch.cuda.synchronize()
    ran = [one.time_range for one in recorded.events() if one.device_type.name == "CUDA"]
    return sorted(Span(float(one.start), float(one.end)) for one in ran)
