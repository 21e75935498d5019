"""Record what ran on a device while something was asked of it: kernels and copies by name, with their times."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch.profiler import ProfilerActivity, profile

from benchmarks.gpu.steps import WARM_STEPS, Stepper


class Ran(NamedTuple):
    """Microseconds on the device's clock."""

    start: float
    end: float
    name: str


def recorded(run: Callable[[], object]) -> list[Ran]:
    """In order of their beginning."""
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as found:
        run()
        torch.cuda.synchronize()
    events = [one for one in found.events() if one.device_type.name == "CUDA"]
    return sorted(Ran(float(one.time_range.start), float(one.time_range.end), str(one.name)) for one in events)


def of_decodes(stepper: Stepper, rows: int, context: int, steps: int) -> tuple[list[Ran], int]:
    """Record so many steps and those that warm up; return what ran, and how many steps that is."""
    stepper.decode_seconds(rows, context, 2)
    return recorded(lambda: stepper.decode_seconds(rows, context, steps)), WARM_STEPS + steps


def of_prompt(stepper: Stepper, tokens: int, repeats: int) -> tuple[list[Ran], int]:
    """Record so many passes over a prompt and one before them; return what ran, and how many passes that is."""
    stepper.prompt_seconds(tokens, 1)
    return recorded(lambda: stepper.prompt_seconds(tokens, repeats)), repeats + 1
