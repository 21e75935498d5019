"""Measured steps, the protocol of step models, and the errors of a model on steps.

A round is from one plan to the next: the step, and the host's work around it. Virtual time advances by rounds. Errors
and noise are both means of |modelled / measured - 1|; the noise is the error of a perfect model on this machine.
"""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from inflight.core.types.features import Features
from inflight.records.schema import StepRecord

StepKind = Literal["decode", "prefill", "mixed"]
KINDS: tuple[StepKind, ...] = ("decode", "prefill", "mixed")


@dataclass(frozen=True, slots=True)
class Step:
    """A step with the seconds of its round."""

    features: Features
    seconds: float

    @property
    def kind(self) -> StepKind:
        return kind_of(self.features)


def kind_of(features: Features) -> StepKind:
    if not features.has_prompts:
        return "decode"
    return "mixed" if features.decode_context else "prefill"


@dataclass(frozen=True, slots=True)
class TimedStep:
    """A step as the engine saw it: seconds of the step itself, times of its plan and its commit on the engine's clock,
    and its sequences. draft_seconds: those of its seconds in which the executor made drafts."""

    features: Features
    seconds: float
    planned: float
    committed: float
    sequences: frozenset[int]
    draft_seconds: float = 0.0


def timed_steps(records: Iterable[StepRecord]) -> list[TimedStep]:
    """Return the steps of a record file that were computed, in order."""
    return [
        TimedStep(
            record.features,
            record.seconds,
            record.planned,
            record.committed,
            frozenset(chunk.sequence_id for chunk in record.plan.chunks),
            record.draft_seconds,
        )
        for record in records
        if record.error is None
    ]


def rounds(timed: Sequence[TimedStep]) -> list[Step]:
    """Return steps with the seconds of their rounds, without drafting, which depends on another model.

    Where a step continues a sequence of the one before it, the engine did not rest between the two, and the round is
    from plan to plan. Where it may have rested, the host's time after a commit is the median of the others. Where the
    next step was planned ahead, the round ends with the commit.
    """
    busy = [
        bool(one.sequences & later.sequences) and later.planned >= one.committed
        for one, later in itertools.pairwise(timed)
    ] + [False]
    after = [later.planned - one.committed for one, later, was in zip(timed, timed[1:], busy, strict=False) if was]
    median_after = statistics.median(after) if after else 0.0
    begins = [one.planned for one in timed[:1]]
    begins += [max(one.committed, later.planned) for one, later in itertools.pairwise(timed)]
    ahead = [later.planned < one.committed for one, later in itertools.pairwise(timed)] + [False]
    ends = [
        timed[index + 1].planned if busy[index] else one.committed + (0.0 if ahead[index] else median_after)
        for index, one in enumerate(timed)
    ]
    found = [
        Step(one.features, max(end - begin, one.seconds) - one.draft_seconds)
        for one, begin, end in zip(timed, begins, ends, strict=True)
    ]
    return [one for one in found if one.seconds > 0]


DecodeSeconds = Callable[[int, Iterable[int]], list[float]]


class StepModel(Protocol):
    """Says how long a step takes. One that has a method `count` is called with each step that is computed. One may have
    a method `decode_seconds`, which returns for so many rows of decodes the seconds at each of some contexts, to the
    bit as `seconds` does. And one may have a method `in_steps_of` (below)."""

    @property
    def name(self) -> str:
        """A description with its source, for readers of results: "fitted on 812 steps of …", "H100, data sheet"."""

    def seconds(self, features: Features) -> float:
        """Return how long a step takes, above zero. The caller may change the features later: do not keep them."""

    def extrapolates(self, features: Features) -> str | None:
        """Return a sentence with the number that is outside of the model's ranges; None where all are inside. A larger
        context brings no step inside."""


def in_steps_of(model: StepModel, tokens: int | None, pass_tokens: int | None = None) -> StepModel:
    """Return the model of an engine whose steps have so many tokens at most, where that changes it.

    Args:
        model: The model of its steps.
        tokens: None where prompts are never divided between steps.
        pass_tokens: Of a forward pass at most, of which wider steps take several; None: as before.
    """
    bounded: Callable[[int | None, int | None], StepModel] | None = getattr(model, "in_steps_of", None)
    return model if bounded is None else bounded(tokens, pass_tokens)


Errors = Mapping[str, tuple[float, int]]  # kind, or "all" → mean absolute relative error, steps


def errors_of(model: StepModel, steps: Iterable[Step]) -> Errors:
    """Return the errors of a model, on steps that it was not fitted on."""
    return by_kind((one.kind, abs(model.seconds(one.features) / one.seconds - 1)) for one in steps)


def noise_of(steps: Iterable[Step]) -> Errors:
    """Return the noise of steps that have equals; empty where none has. Each of n equal steps is predicted by the
    median of the others, whose own error √(1 - 1/n) removes (exactly so for means of normal errors)."""
    return by_kind(
        (kind_of(features), abs(_median_without(seconds, index) / each - 1) * (1 - 1 / len(seconds)) ** 0.5)
        for features, seconds in equal_steps(steps).items()
        if len(seconds) > 1
        for index, each in enumerate(seconds)
    )


def equal_steps(steps: Iterable[Step]) -> dict[Features, list[float]]:
    """Return features → the sorted seconds of all steps that have them."""
    groups: dict[Features, list[float]] = {}
    for one in steps:
        groups.setdefault(one.features, []).append(one.seconds)
    return {features: sorted(seconds) for features, seconds in groups.items()}


def _median_without(ordered: Sequence[float], index: int) -> float:
    """Return the median of sorted values without one of them."""
    low, high = ((len(ordered) - 1 + odd) // 2 for odd in (-1, 0))
    return (ordered[low + (low >= index)] + ordered[high + (high >= index)]) / 2


def by_kind(errors: Iterable[tuple[StepKind, float]]) -> Errors:
    """Return the mean error of each kind and of all steps, with the number of steps."""
    found: dict[str, list[float]] = {}
    for kind, error in errors:
        found.setdefault(kind, []).append(error)
    by_kind_of_step: dict[str, tuple[float, int]] = {
        kind: (statistics.fmean(found[kind]), len(found[kind])) for kind in KINDS if kind in found
    }
    every = [error for each in found.values() for error in each]
    return {**by_kind_of_step, "all": (statistics.fmean(every), len(every))} if every else {}
