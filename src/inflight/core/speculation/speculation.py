"""Speculation as the scheduler uses it: drafters, which sequences have how many drafts, counts, and forced drafts.

A drafter guesses the tokens that a decode will bring, so that one step yields several where the guess was right. Wrong
drafts cost time, never tokens: the sampled tokens are the same whatever was drafted.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from msgspec import Struct

from inflight.core.sequence import SequenceView
from inflight.core.types.features import Features, features
from inflight.core.types.plan import BatchPlan, Chunk, StepResult

TARGET_SHARE = 0.9  # of a target that a step with drafts may take: predictions err
MIN_FORCED_TOKENS = 3  # to leave a sequence out of a step for: the one in flight yields one, and the next none
MAX_DRAFTS = 32  # of a sequence in a step; they are sampled in one pass, and so many are hardly ever right


class Proposal(NamedTuple):
    """Tokens that may follow. chances: of each, from 0 to 1, that it is right if those before it are: beliefs."""

    token_ids: tuple[int, ...]
    chances: tuple[float, ...]


NOTHING = Proposal((), ())


class Drafter(Protocol):
    """Makes drafts when a step is planned. name: in records and metrics, such as "suffix"."""

    name: str

    def propose(self, view: SequenceView, max_drafts: int) -> Proposal:
        """Return drafts behind a sequence's tokens, at most so many; `NOTHING` if there are none."""

    def finished(self, view: SequenceView) -> None:
        """Forget a sequence that has ended; its output may be remembered."""


class ExecutorDrafter(Struct, frozen=True):
    """Stands for drafts that the executor makes inside of the step. max_drafts: of a sequence in a step."""

    name: str
    max_drafts: int


class DraftCandidate(NamedTuple):
    """A decode that may be drafted for. room: limit of its drafts; it may be 0."""

    view: SequenceView
    room: int


class Allotment(NamedTuple):
    """Drafts of one sequence, at least 1. token_ids: empty if the executor makes them."""

    number: int
    num_drafts: int
    token_ids: tuple[int, ...]


@dataclass(slots=True)
class SpeculationStats:
    """Counts since the engine began."""

    drafter: str  # its name
    asked: int = 0  # calls of the drafter, each for one sequence
    steps: int = 0  # steps with any draft
    chunks: int = 0  # chunks with any draft
    drafted: list[int] = field(default_factory=list)  # drafts by position from the first
    accepted: list[int] = field(default_factory=list)  # of these, those that were right, with all before them
    won_seconds: float = 0.0  # estimated, of steps in which drafts brought more than they cost
    lost_seconds: float = 0.0  # of the other steps, and of calls in vain

    def add_chunk(self, drafts: int, right: int) -> None:
        """Count a chunk with so many drafts."""
        self.chunks += 1
        for counts, number in ((self.drafted, drafts), (self.accepted, right)):
            counts += [0] * (drafts - len(counts))
            counts[:number] = [count + 1 for count in counts[:number]]

    def add_seconds(self, won: float) -> None:
        """Add what drafts saved, less what they cost."""
        self.won_seconds, self.lost_seconds = self.won_seconds + max(0.0, won), self.lost_seconds + max(0.0, -won)


class Speculation:
    """Decide on drafts; this one drafts nothing. `waits`, `due` and `stats` have no effect."""

    def began(self, view: SequenceView) -> None:
        """Add a sequence that has its first token; from now on it may be drafted for."""

    def waits(self, step: int) -> bool:
        """Return whether a step is to be planned after the result of the one before it, since that has drafts."""
        return False

    def due(self, step: int) -> Collection[int] | None:
        """Return the numbers of the sequences that are candidates of this step; None for all."""
        return ()

    def hold_back(self, step: int, views: Sequence[SequenceView], running: int) -> Collection[int]:
        """Choose sequences to leave out of a step that is planned ahead, so that the next one can draft for them.
        views: those due whose next token is being computed. running: number of sequences that run."""
        return ()

    def allot(
        self, step: int, chunks: Sequence[Chunk], candidates: Sequence[DraftCandidate], budget: int
    ) -> list[Allotment]:
        """Choose at most `budget` drafts of these decodes in all. chunks: of the step, without drafts."""
        return []

    def observe(self, plan: BatchPlan, work: Features, result: StepResult, round_seconds: float) -> None:
        """Learn from a step, which may have failed. work: features of the plan. round_seconds: time from the commit
        before it, or its own plan, to its commit; 0 if unknown."""

    def finished(self, view: SequenceView) -> None:
        """Remove a sequence that has ended."""

    def stats(self) -> SpeculationStats | None:
        """Return the counts, if there are any."""
        return None


class StepLimit:
    """The seconds that a step with drafts may take, by the targets of running sequences.

    An ITL target bounds every step, since each is a gap. A TPOT target bounds the steps in which its sequence has no
    drafts: with drafts a longer step brings it several tokens.
    """

    def __init__(self) -> None:
        self._itl: dict[int, float] = {}
        self._tpot: dict[int, float] = {}

    def began(self, view: SequenceView) -> None:
        """Add the targets of a sequence that may be drafted for."""
        for target, targets in ((view.slo.itl, self._itl), (view.slo.tpot, self._tpot)):
            if target is not None:
                targets[view.number] = target

    def finished(self, view: SequenceView) -> None:
        """Remove the targets of a sequence that has ended."""
        self._itl.pop(view.number, None)
        self._tpot.pop(view.number, None)

    def seconds(self, drafted: Collection[int]) -> float:
        """Return the seconds of a step in which these sequences have drafts; infinite without targets."""
        targets = [*self._itl.values(), *(target for number, target in self._tpot.items() if number not in drafted)]
        return TARGET_SHARE * min(targets, default=math.inf)


class StepTimes(Protocol):
    """A model of step times; `LatencyModel` is one, which drafters need not load."""

    @property
    def ready(self) -> bool: ...

    def max_extra_decodes(self, features: Features, seconds: float, /) -> int: ...


class ForcedDrafts(Speculation):
    """Draft tokens that a grammar alone allows, as the executor reported them, and leave other sequences to another
    speculation. Each forced token has to be computed anyway: they take the rest of the step, within its limit."""

    def __init__(self, latency: StepTimes, others: Speculation | None = None) -> None:
        """others: drafts for sequences without forced tokens; None: these have no drafts."""
        self._latency, self._others = latency, Speculation() if others is None else others
        self._forced: dict[int, tuple[int, ...]] = {}  # tokens behind the last one, by sequence
        self._limit = StepLimit()

    def force(self, number: int, token_ids: tuple[int, ...]) -> None:
        """Set the tokens that alone may follow a sequence's last one; empty: any may."""
        if token_ids:
            self._forced[number] = token_ids
        elif self._forced:
            self._forced.pop(number, None)

    def began(self, view: SequenceView) -> None:
        self._limit.began(view)
        self._others.began(view)

    def waits(self, step: int) -> bool:
        return self._others.waits(step)

    def due(self, step: int) -> Collection[int] | None:
        due = self._others.due(step)
        return due if due is None or not self._forced else {*due, *self._forced}

    def hold_back(self, step: int, views: Sequence[SequenceView], running: int) -> Collection[int]:
        held = {one.number for one in views if len(self._forced.get(one.number, ())) >= MIN_FORCED_TOKENS}
        rest = [one for one in views if one.number not in self._forced]
        return held.union(self._others.hold_back(step, rest, running)) if rest else held

    def allot(
        self, step: int, chunks: Sequence[Chunk], candidates: Sequence[DraftCandidate], budget: int
    ) -> list[Allotment]:
        due = self._others.due(step)
        found = self._allot_forced(step, chunks, candidates, budget) if self._forced else []
        left = budget - sum(one.num_drafts for one in found)
        asked = [one for one in candidates if due is None or one.view.number in due]
        rest = [one for one in asked if one.view.number not in self._forced]
        return found + self._others.allot(step, chunks, rest, left) if rest and left > 0 else found

    def _allot_forced(
        self, step: int, chunks: Sequence[Chunk], candidates: Sequence[DraftCandidate], budget: int
    ) -> list[Allotment]:
        """Draft forced tokens. A step is as short as sequences need that have none of theirs in it."""
        drafted = {view.number for view, room in candidates if room > 0 and view.number in self._forced}
        while drafted:
            left, found = min(budget, self._max_tokens(step, chunks, self._limit.seconds(drafted))), []
            for view, room in candidates:
                token_ids = self._forced.get(view.number, ())[: max(0, min(room, left, MAX_DRAFTS))]
                if token_ids:
                    found.append(Allotment(view.number, len(token_ids), token_ids))
                    left -= len(token_ids)
            if len(found) == len(drafted):
                return found
            drafted = {one.number for one in found}
        return []

    def _max_tokens(self, step: int, chunks: Sequence[Chunk], seconds: float) -> int:
        """Return how many tokens a step can have beside these chunks in so many seconds."""
        if seconds == math.inf:
            return sys.maxsize
        work = features(BatchPlan(step, tuple(chunks)))
        return self._latency.max_extra_decodes(work, seconds) if self._latency.ready else 0

    def finished(self, view: SequenceView) -> None:
        self.force(view.number, ())
        self._limit.finished(view)
        self._others.finished(view)
