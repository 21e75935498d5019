"""Steps: what each held, how long the round took that it was part of, what a model says of it, and how far off that is.

Knows records and observers' words, and the protocol of step models (the engine's own model in `core.estimation.latency`
is another thing: learnt from the steps as they pass, for the scheduler under test). Errors and noise are both means of
|told / measured - 1| over steps, by kind; the noise is what the error of a perfect model would be on this machine.

A round is from one plan to the next: the step, and what the host does around it (planning, committing, handing out
tokens); virtual time must advance by rounds to keep pace with a real engine. Of a step that was planned while another
was computed the round begins when that one is committed: what the host does for it is hidden behind the device's work,
or is part of that round.
"""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from inflight.core.types.features import Features
from inflight.records.schema import StepRecord

Kind = Literal["decode", "prefill", "mixed"]
KINDS: tuple[Kind, ...] = ("decode", "prefill", "mixed")


@dataclass(frozen=True, slots=True)
class Step:
    """seconds: of the round."""

    features: Features
    seconds: float

    @property
    def kind(self) -> Kind:
        return kind_of(self.features)


def kind_of(features: Features) -> Kind:
    if not features.prefill_context:
        return "decode"
    return "mixed" if features.decode_context else "prefill"


@dataclass(frozen=True, slots=True)
class TimedStep:
    """A step as the engine saw it: seconds of the step itself, times of its plan and its commit on the engine's clock,
    and the sequences that it advanced. draft_seconds: of its seconds, those in which the executor made drafts."""

    features: Features
    seconds: float
    planned: float
    committed: float
    sequences: frozenset[int]
    draft_seconds: float = 0.0


def timed_steps(records: Iterable[StepRecord]) -> list[TimedStep]:
    """The steps of a record file that were computed, in order."""
    return [
        TimedStep(
            Features(**record["features"]),
            record["seconds"],
            record["planned"],
            record["committed"],
            frozenset(chunk["sequence"] for chunk in record["chunks"]),
            record.get("draft_seconds", 0.0),
        )
        for record in records
        if "error" not in record
    ]


def rounds(timed: Sequence[TimedStep]) -> list[Step]:
    """Steps with the seconds of their rounds, without what making drafts took: that hangs on another model.

    Where a step goes on with a sequence of the one before it, the engine did not rest between the two, and the round is
    from plan to plan. Where it may have rested, what the host does after a commit is taken as the median of the others.
    Where the next step was planned ahead, the round ends with the commit.
    """
    busy = [
        bool(one.sequences & later.sequences) and later.planned >= one.committed
        for one, later in itertools.pairwise(timed)
    ] + [False]
    after = [later.planned - one.committed for one, later, was in zip(timed, timed[1:], busy, strict=False) if was]
    usual = statistics.median(after) if after else 0.0
    begins = [one.planned for one in timed[:1]]
    begins += [max(one.committed, later.planned) for one, later in itertools.pairwise(timed)]
    ahead = [later.planned < one.committed for one, later in itertools.pairwise(timed)] + [False]
    ends = [
        timed[index + 1].planned if busy[index] else one.committed + (0.0 if ahead[index] else usual)
        for index, one in enumerate(timed)
    ]
    found = [
        Step(one.features, max(end - begin, one.seconds) - one.draft_seconds)
        for one, begin, end in zip(timed, begins, ends, strict=True)
    ]
    return [one for one in found if one.seconds > 0]


class StepModel(Protocol):
    @property
    def name(self) -> str:
        """What the model is and what it rests on, for a reader of results: "fitted on 812 steps of …", "H100, data
        sheet"."""

    def seconds(self, features: Features) -> float:
        """How long the step takes, above zero. `held` is the caller's, who may use it again: take numbers out of it, do
        not keep it."""

    def extrapolates(self, features: Features) -> str | None:
        """A sentence with the number that lies outside of what the model rests on; None where it lies inside."""


Errors = Mapping[str, tuple[float, int]]  # kind, or "all" → mean absolute relative error, steps


def errors_of(model: StepModel, steps: Iterable[Step]) -> Errors:
    """Of steps that the model was not fitted on, if it is to mean anything."""
    return by_kind((one.kind, abs(model.seconds(one.features) / one.seconds - 1)) for one in steps)


def noise_of(steps: Iterable[Step]) -> Errors:
    """Of those steps that have equals; empty where none has. Each of n equal ones is told by the median of the others,
    which is itself off its truth: √(1 - 1/n) takes off what that adds (exactly so for means of normal errors)."""
    return by_kind(
        (Step(features, each).kind, abs(_median_without(seconds, place) / each - 1) * (1 - 1 / len(seconds)) ** 0.5)
        for features, seconds in equal_steps(steps).items()
        if len(seconds) > 1
        for place, each in enumerate(seconds)
    )


def equal_steps(steps: Iterable[Step]) -> dict[Features, list[float]]:
    """What steps held → the seconds of all that held it, rising."""
    groups: dict[Features, list[float]] = {}
    for one in steps:
        groups.setdefault(one.features, []).append(one.seconds)
    return {features: sorted(seconds) for features, seconds in groups.items()}


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
