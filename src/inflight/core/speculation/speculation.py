"""Speculation, as the mechanism asks it: who has how many drafts in a step, and what came of them.

Knows sequences by what policies may see of them; which blocks and how much of a step's budget there is for drafts, the
draft planner knows.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple, Protocol

from inflight.core.sequence import SequenceView
from inflight.core.speculation.stats import SpeculationStats
from inflight.core.types.features import Features
from inflight.core.types.plan import BatchPlan, Chunk, StepResult

HEADROOM = 0.9  # of an ITL target that steps with drafts keep: predictions err
MOST = 32  # drafts of a sequence in a step; they are sampled in one pass, and so many are hardly ever right


class Candidate(NamedTuple):
    """A decode of the step whose turn it is. room: drafts that it may have at most; it may be none."""

    view: SequenceView
    room: int


class Allotment(NamedTuple):
    """Drafts of one candidate: so many, at least 1. token_ids: these; none where the executor makes them itself."""

    number: int
    num_drafts: int
    token_ids: tuple[int, ...]


class Speculation(Protocol):
    def began(self, view: SequenceView) -> None:
        """A sequence has its first token: from now on it may be drafted for."""

    def waits(self, step: int) -> bool:
        """Whether this step is not to be planned while the one before it is being computed, since that has drafts."""

    def turns(self, step: int, running: int, ahead: bool) -> Collection[int] | None:
        """Numbers of the sequences that are to be candidates of this step. running: sequences that run. ahead: the step
        before it is still being computed. None: all."""

    def holds(self, step: int, view: SequenceView) -> bool:
        """Whether a sequence whose turn it is, and whose next token is being computed, is not planned ahead, so that it
        can be drafted for in the step after this one."""

    def allot(
        self, step: int, chunks: Sequence[Chunk], candidates: Sequence[Candidate], budget: int
    ) -> list[Allotment]:
        """Drafts for a step's candidates, `budget` in all at most. chunks: of the step, without drafts."""

    def observe(self, plan: BatchPlan, held: Features, result: StepResult, round_seconds: float) -> None:
        """A step was computed. held: its features. round_seconds: from the commit before it, or its own plan, to its
        commit; 0 where nobody knows."""

    def finished(self, view: SequenceView) -> None:
        """A sequence has ended, however it did."""

    def stats(self) -> SpeculationStats | None:
        """None: nothing is counted."""
