"""Measured steps: what each held, and how long the round took that it was part of.

Knows records and observers' words. A round is from one plan to the next: the step, and what the host does around it
(planning, committing, handing out tokens); virtual time must advance by rounds to keep pace with a real engine.
"""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from inflight.core.types.features import Features
from inflight.records.schema import StepRecord

Kind = Literal["decode", "prefill", "mixed"]
KINDS: tuple[Kind, ...] = ("decode", "prefill", "mixed")


@dataclass(frozen=True, slots=True)
class Step:
    """seconds: of the round."""

    held: Features
    seconds: float

    @property
    def kind(self) -> Kind:
        return kind_of(self.held)


def kind_of(held: Features) -> Kind:
    if not held.prefill_context:
        return "decode"
    return "mixed" if held.decode_context else "prefill"


@dataclass(frozen=True, slots=True)
class Timed:
    """A step as the engine saw it: seconds of the step itself, times of its plan and its commit on the engine's clock,
    and the sequences that it advanced."""

    held: Features
    seconds: float
    planned: float
    committed: float
    sequences: frozenset[int]


def timed_steps(records: Iterable[StepRecord]) -> list[Timed]:
    """The steps of a record file that were computed, in order."""
    return [
        Timed(
            Features(**record["features"]),
            record["seconds"],
            record["planned"],
            record["committed"],
            frozenset(chunk["sequence"] for chunk in record["chunks"]),
        )
        for record in records
        if "error" not in record
    ]


def rounds(timed: Sequence[Timed]) -> list[Step]:
    """Steps with the seconds of their rounds.

    Where a step goes on with a sequence of the one before it, the engine did not rest between the two, and the round is
    from plan to plan. Where it may have rested, what the host does after a commit is taken as the median of the others.
    """
    busy = [
        bool(one.sequences & later.sequences) and later.planned >= one.committed
        for one, later in itertools.pairwise(timed)
    ] + [False]
    after = [later.planned - one.committed for one, later, was in zip(timed, timed[1:], busy, strict=False) if was]
    usual = statistics.median(after) if after else 0.0
    found = []
    for index, one in enumerate(timed):
        end = timed[index + 1].planned if busy[index] else one.committed + usual
        found.append(Step(one.held, max(end - one.planned, one.seconds)))
    return [one for one in found if one.seconds > 0]
