"""What speculation did since the engine began, for those who watch it. Counts; decides nothing."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SpeculationStats:
    """drafter: its name. asked: times that it was asked for drafts of a sequence. steps: with any draft. drafted: by
    place from the first, how many drafts there were; accepted: how many of these were right, and all before them.
    chosen: of the chunks with drafts, how many had so many, by number of drafts, rising. won_seconds, lost_seconds:
    estimated, of the steps in which drafts brought more than they cost, and of the others."""

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
        self._outcomes: Counter[tuple[int, int]] = Counter()  # (drafts, right ones) → chunks

    def add(self, drafts: int, right: int) -> None:
        """Of a chunk."""
        self._outcomes[drafts, right] += 1

    def settle(self, seconds: float) -> None:
        """Add what drafts of a step saved, less what they cost."""
        if seconds > 0:
            self._won += seconds
        else:
            self._lost -= seconds

    def stats(self) -> SpeculationStats:
        chosen: Counter[int] = Counter()
        longest = max((drafts for drafts, _ in self._outcomes), default=0)
        drafted, accepted = [0] * longest, [0] * longest
        for (drafts, right), chunks in self._outcomes.items():
            chosen[drafts] += chunks
            for place in range(drafts):
                drafted[place] += chunks
                accepted[place] += chunks * (place < right)
        return SpeculationStats(
            self._drafter,
            self.asked,
            self.steps,
            tuple(drafted),
            tuple(accepted),
            tuple(sorted(chosen.items())),
            self._won,
            self._lost,
        )
