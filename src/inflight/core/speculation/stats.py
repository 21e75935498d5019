"""Counts of speculation since the engine began."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SpeculationStats:
    """Counts of drafts.

    Attributes:
        drafter: Its name.
        asked: Questions to the drafter, each about one sequence.
        steps: Steps with any draft.
        drafted: Drafts by position from the first.
        accepted: Of these, those that were right, with all before them.
        chosen: (drafts, chunks that had so many), rising.
        won_seconds: Estimated, of steps in which drafts brought more than they cost.
        lost_seconds: Of the other steps, and of questions in vain.
    """

    drafter: str
    asked: int = 0
    steps: int = 0
    drafted: tuple[int, ...] = ()
    accepted: tuple[int, ...] = ()
    chosen: tuple[tuple[int, int], ...] = ()
    won_seconds: float = 0.0
    lost_seconds: float = 0.0


class SpeculationTally:
    def __init__(self, drafter: str):
        self.asked = self.steps = 0
        self._won = self._lost = 0.0
        self._drafter = drafter
        self._chunks: Counter[tuple[int, int]] = Counter()  # (drafts, right ones) → chunks

    def add(self, drafts: int, right: int) -> None:
        """Count a chunk."""
        self._chunks[drafts, right] += 1

    def settle(self, seconds: float) -> None:
        """Add what drafts saved, less what they cost."""
        if seconds > 0:
            self._won += seconds
        else:
            self._lost -= seconds

    def stats(self) -> SpeculationStats:
        chosen: Counter[int] = Counter()
        for (drafts, _), chunks in self._chunks.items():
            chosen[drafts] += chunks
        positions, counts = range(max(chosen, default=0)), self._chunks.items()
        drafted = tuple(sum(chunks for (drafts, _), chunks in counts if drafts > position) for position in positions)
        accepted = tuple(sum(chunks for (_, right), chunks in counts if right > position) for position in positions)
        by_number = tuple(sorted(chosen.items()))
        return SpeculationStats(
            self._drafter, self.asked, self.steps, drafted, accepted, by_number, self._won, self._lost
        )
