"""How far a step model is off, and how far equal steps are off each other: the one number beside the other.

Both are means of |told / measured - 1| over steps, by kind. The noise is what the error of a perfect model would be on
this machine.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence

from inflight.core.types.features import Features
from inflight.simulate.latency import StepModel
from inflight.simulate.steps import KINDS, Kind, Step

Errors = Mapping[str, tuple[float, int]]  # kind, or "all" → mean absolute relative error, steps


def errors_of(model: StepModel, steps: Iterable[Step]) -> Errors:
    """Of steps that the model was not fitted on, if it is to mean anything."""
    return by_kind((one.kind, abs(model.seconds(one.held) / one.seconds - 1)) for one in steps)


def noise_of(steps: Iterable[Step]) -> Errors:
    """Of those steps that have equals; empty where none has. Each of n equal ones is told by the median of the others,
    which is itself off its truth: √(1 - 1/n) takes off what that adds (exactly so for means of normal errors)."""
    groups: dict[Features, list[float]] = {}
    for one in steps:
        groups.setdefault(one.held, []).append(one.seconds)
    return by_kind(
        (Step(held, each).kind, abs(_median_without(seconds, place) / each - 1) * (1 - 1 / len(seconds)) ** 0.5)
        for held, seconds in ((held, sorted(seconds)) for held, seconds in groups.items() if len(seconds) > 1)
        for place, each in enumerate(seconds)
    )


def _median_without(ordered: Sequence[float], place: int) -> float:
    """Of all values but one, which stand in their order."""
    low, high = ((len(ordered) - 1 + odd) // 2 for odd in (-1, 0))
    return (ordered[low + (low >= place)] + ordered[high + (high >= place)]) / 2


def by_kind(errors: Iterable[tuple[Kind, float]]) -> Errors:
    found: dict[str, list[float]] = {}
    for kind, error in errors:
        found.setdefault(kind, []).append(error)
    by_kind_of_step: dict[str, tuple[float, int]] = {
        kind: (statistics.fmean(found[kind]), len(found[kind])) for kind in KINDS if kind in found
    }
    every = [error for each in found.values() for error in each]
    return {**by_kind_of_step, "all": (statistics.fmean(every), len(every))} if every else {}
