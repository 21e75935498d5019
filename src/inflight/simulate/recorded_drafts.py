"""The drafts of a record, in place of a controller's: who had any in which step, and who was left out for their sake.

Knows steps of a record; nothing of settings and requests.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from inflight.core.sequence import SequenceView
from inflight.core.speculation.speculation import Allotment, Candidate, Speculation
from inflight.core.types.plan import Chunk
from inflight.records.drafts import num_drafts
from inflight.records.schema import StepRecord


class RecordedDrafts(Speculation):
    """Speculation with the drafts of a record: those that its steps had."""

    def __init__(self, steps: Sequence[StepRecord]):
        self._drafts = {
            (step["step"], chunk["sequence"]): (num_drafts(chunk), tuple(chunk.get("draft_token_ids", ())))
            for step in steps
            for chunk in step["chunks"]
            if num_drafts(chunk)
        }
        self._ahead = [_was_ahead(before, step) for before, step in pairwise(steps)]
        self._held = {step["step"]: set(step.get("held_back", ())) for step in steps}
        self._due = {step: set(held) for step, held in self._held.items()}
        for step, sequence in self._drafts:  # none of these has a token in flight
            self._due[step].add(sequence)

    def __bool__(self) -> bool:
        return bool(self._drafts) or any(self._held.values())

    def waits(self, step: int) -> bool:
        return not self._ahead[step - 1]

    def due(self, step: int) -> set[int]:
        return self._due[step]

    def hold_back(self, step: int, views: Sequence[SequenceView], running: int) -> set[int]:
        return {view.number for view in views}

    def allot(
        self, step: int, chunks: Sequence[Chunk], candidates: Sequence[Candidate], budget: int
    ) -> list[Allotment]:
        of = {view.number: min(room, budget) for view, room in candidates}
        drafted = [(number, *self._drafts.get((step, number), (0, ()))) for number in of]
        return [Allotment(number, count, token_ids) for number, count, token_ids in drafted if 0 < count <= of[number]]


def _was_ahead(before: StepRecord, step: StepRecord) -> bool:
    """Whether a step was planned while the one before it was computed."""
    if "before_commit" in step:
        return step["before_commit"] < step["step"]
    return step["planned"] < before["committed"]
