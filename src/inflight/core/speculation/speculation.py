"""Speculation as the scheduler asks for it: which sequences have how many drafts in a step."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple

from inflight.core.sequence import SequenceView
from inflight.core.speculation.stats import SpeculationStats
from inflight.core.types.features import Features
from inflight.core.types.plan import BatchPlan, Chunk, StepResult

HEADROOM = 0.9  # of an ITL target that steps with drafts keep: predictions err
MAX_DRAFTS = 32  # of a sequence in a step; they are sampled in one pass, and so many are hardly ever right


class Candidate(NamedTuple):
    """A decode that may be drafted for. room: drafts that it may have at most; it may be none."""

    view: SequenceView
    room: int


class Allotment(NamedTuple):
    """Drafts of one sequence, at least 1. token_ids: empty where the executor makes them."""

    number: int
    num_drafts: int
    token_ids: tuple[int, ...]


class Speculation:
    """Decide on drafts; this one drafts nothing. `waits`, `due` and `stats` have no effect."""

    def began(self, view: SequenceView) -> None:
        """Take in a sequence that has its first token; from now on it may be drafted for."""

    def waits(self, step: int) -> bool:
        """Return whether a step is planned behind the result of the one before it, since that has drafts."""
        return False

    def due(self, step: int) -> Collection[int] | None:
        """Return the numbers of the sequences that are candidates of this step; None for all."""
        return ()

    def hold_back(self, step: int, views: Sequence[SequenceView], running: int) -> Collection[int]:
        """Choose sequences to leave out of a step that is planned ahead, so that the next one can draft for them.

        Args:
            step: The step that is planned while the one before it is computed.
            views: Those due whose next token is being computed.
            running: Number of sequences that run.
        """
        return ()

    def allot(
        self, step: int, chunks: Sequence[Chunk], candidates: Sequence[Candidate], budget: int
    ) -> list[Allotment]:
        """Choose drafts of these decodes, `budget` in all at most. chunks: of the step, without drafts."""
        return []

    def observe(self, plan: BatchPlan, work: Features, result: StepResult, round_seconds: float) -> None:
        """Learn from a step.

        Args:
            plan: What was computed.
            work: Its features.
            result: What came of it; it may have failed.
            round_seconds: Time from the commit before it, or its own plan, to its commit; 0 where that is unknown.
        """

    def finished(self, view: SequenceView) -> None:
        """Forget a sequence that has ended."""

    def stats(self) -> SpeculationStats | None:
        """Return what was counted, if anything was."""
        return None
