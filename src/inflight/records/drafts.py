"""Drafts in a record's steps: how many a sequence had, and how many were right.

Steps of old versions do not have how many were right, and count as steps without drafts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from inflight.records.schema import StepRecord


class Verified(NamedTuple):
    """One chunk with drafts: how many it had, and how many were right before the first that was not."""

    sequence: int
    drafts: int
    accepted: int


def verified(step: StepRecord) -> Iterator[Verified]:
    """Yield the step's chunks with drafts, in their order."""
    if not step.accepted:
        return
    drafts = {chunk.sequence_id: chunk.num_drafts for chunk in step.plan.chunks}
    for sequence, accepted in step.accepted:
        yield Verified(sequence, drafts.get(sequence, 0), accepted)


def rejected(step: StepRecord) -> dict[int, int]:
    """Return, by sequence, the drafts that were wrong: computed, and rolled back."""
    return {one.sequence: one.drafts - one.accepted for one in verified(step)}


class Position(NamedTuple):
    """Counts of first, second, … drafts of chunks: all, those behind right ones only, and the right ones of these."""

    drafted: int
    reached: int
    accepted: int


class DraftCounts:
    """Counts over chunks that had drafts."""

    def __init__(self) -> None:
        self._chunks: Counter[tuple[int, int]] = Counter()  # (drafts, accepted)

    @classmethod
    def of(cls, steps: Iterable[StepRecord]) -> DraftCounts:
        counts = cls()
        for step in steps:
            for one in verified(step):
                counts.add(one)
        return counts

    def add(self, one: Verified) -> None:
        self._chunks[one.drafts, one.accepted] += 1

    @property
    def chunks(self) -> int:
        return self._chunks.total()

    @property
    def tokens(self) -> int:
        return sum(drafts * chunks for (drafts, _), chunks in self._chunks.items())

    @property
    def accepted_tokens(self) -> int:
        return sum(accepted * chunks for (_, accepted), chunks in self._chunks.items())

    def accepted_lengths(self) -> dict[int, int]:
        """Return, by number of right drafts, the number of chunks; rising."""
        found: Counter[int] = Counter()
        for (_, accepted), chunks in self._chunks.items():
            found[accepted] += chunks
        return dict(sorted(found.items()))

    def positions(self) -> list[Position]:
        longest = max((drafts for drafts, _ in self._chunks), default=0)
        return [self._position(index) for index in range(longest)]

    def _position(self, index: int) -> Position:
        drafted = reached = right = 0
        for (drafts, accepted), chunks in self._chunks.items():
            if drafts > index:
                drafted += chunks
                reached += chunks * (accepted >= index)
                right += chunks * (accepted > index)
        return Position(drafted, reached, right)
