"""Speculation as the scheduler uses it: which sequences have how many drafts in a step, forced drafts, and counts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from inflight.core.estimation.latency import LatencyModel
from inflight.core.sequence import SequenceView
from inflight.core.types.features import Features, features
from inflight.core.types.plan import BatchPlan, Chunk, StepResult

ITL_SHARE = 0.9  # of an ITL target that a step with drafts may take: predictions err
MAX_DRAFTS = 32  # of a sequence in a step; they are sampled in one pass, and so many are hardly ever right
MIN_FORCED_TOKENS = 3  # to leave a sequence out of a step for: the one in flight yields one, and the next none


class Candidate(NamedTuple):
    """A decode that may be drafted for. room: limit of its drafts; it may be 0."""

    view: SequenceView
    room: int


class Allotment(NamedTuple):
    """Drafts of one sequence, at least 1. token_ids: empty if the executor makes them."""

    number: int
    num_drafts: int
    token_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class SpeculationStats:
    """Counts since the engine began."""

    drafter: str  # its name
    asked: int = 0  # calls of the drafter, each for one sequence
    steps: int = 0  # steps with any draft
    drafted: tuple[int, ...] = ()  # drafts by position from the first
    accepted: tuple[int, ...] = ()  # of these, those that were right, with all before them
    chosen: tuple[tuple[int, int], ...] = ()  # (drafts, chunks that had so many), rising
    won_seconds: float = 0.0  # estimated, of steps in which drafts brought more than they cost
    lost_seconds: float = 0.0  # of the other steps, and of calls in vain


class SpeculationTally:
    def __init__(self, drafter: str):
        self.steps = 0
        self._drafter, self._won, self._lost = drafter, 0.0, 0.0
        self._chunks: Counter[tuple[int, int]] = Counter()  # (drafts, right ones) → chunks

    def add_chunk(self, drafts: int, right: int) -> None:
        self._chunks[drafts, right] += 1

    def add_seconds(self, won: float) -> None:
        """Add what drafts saved, less what they cost."""
        if won > 0:
            self._won += won
        else:
            self._lost -= won

    def stats(self, asked: int) -> SpeculationStats:
        chosen: Counter[int] = Counter()
        for (drafts, _), chunks in self._chunks.items():
            chosen[drafts] += chunks
        positions, counts = range(max(chosen, default=0)), self._chunks.items()
        drafted = tuple(sum(chunks for (drafts, _), chunks in counts if drafts > position) for position in positions)
        accepted = tuple(sum(chunks for (_, right), chunks in counts if right > position) for position in positions)
        by_number = tuple(sorted(chosen.items()))
        return SpeculationStats(self._drafter, asked, self.steps, drafted, accepted, by_number, self._won, self._lost)


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

        Args:
            step: The step that is planned while the one before it is computed.
            views: Those due whose next token is being computed.
            running: Number of sequences that run.
        """
        return ()

    def allot(
        self, step: int, chunks: Sequence[Chunk], candidates: Sequence[Candidate], budget: int
    ) -> list[Allotment]:
        """Choose at most `budget` drafts of these decodes in all. chunks: of the step, without drafts."""
        return []

    def observe(self, plan: BatchPlan, work: Features, result: StepResult, round_seconds: float) -> None:
        """Learn from a step.

        Args:
            plan: What was computed.
            work: Its features.
            result: What it yielded; it may have failed.
            round_seconds: Time from the commit before it, or its own plan, to its commit; 0 if unknown.
        """

    def finished(self, view: SequenceView) -> None:
        """Remove a sequence that has ended."""

    def stats(self) -> SpeculationStats | None:
        """Return the counts, if there are any."""
        return None


class ForcedDrafts(Speculation):
    """Draft tokens that a grammar alone allows, as the executor reported them, and leave other sequences to another
    speculation. Each forced token would have to be computed anyway, so they take the rest of the step without being
    weighed, within the ITL targets of all that run."""

    def __init__(self, latency: LatencyModel, others: Speculation | None = None) -> None:
        """others: drafts for sequences without forced tokens; None: these have no drafts."""
        self._latency, self._others = latency, Speculation() if others is None else others
        self._forced: dict[int, tuple[int, ...]] = {}  # tokens behind the last one, by sequence
        self._targets: dict[int, float] = {}  # ITL targets of running sequences, in seconds

    def force(self, number: int, token_ids: tuple[int, ...]) -> None:
        """Set the tokens that alone may follow a sequence's last one; empty: any may."""
        if token_ids:
            self._forced[number] = token_ids
        elif self._forced:
            self._forced.pop(number, None)

    def began(self, view: SequenceView) -> None:
        if view.itl_target is not None:
            self._targets[view.number] = view.itl_target
        self._others.began(view)

    def waits(self, step: int) -> bool:
        return self._others.waits(step)

    def due(self, step: int) -> Collection[int] | None:
        due = self._others.due(step)
        return due if due is None or not self._forced else {*due, *self._forced}

    def hold_back(self, step: int, views: Sequence[SequenceView], running: int) -> Collection[int]:
        forced = self._forced
        held = {one.number for one in views if len(forced.get(one.number, ())) >= MIN_FORCED_TOKENS}
        rest = [one for one in views if one.number not in forced]
        return held.union(self._others.hold_back(step, rest, running)) if rest else held

    def allot(
        self, step: int, chunks: Sequence[Chunk], candidates: Sequence[Candidate], budget: int
    ) -> list[Allotment]:
        found = self._allot_forced(chunks, candidates, budget) if self._forced else []
        left, due = budget - sum(one.num_drafts for one in found), self._others.due(step)
        rest = [one for one in candidates if one.view.number not in self._forced]
        rest = [one for one in rest if due is None or one.view.number in due]
        return found + self._others.allot(step, chunks, rest, left) if rest and left > 0 else found

    def _allot_forced(self, chunks: Sequence[Chunk], candidates: Sequence[Candidate], budget: int) -> list[Allotment]:
        found: list[Allotment] = []
        if self._targets:
            work, target = features(BatchPlan(0, tuple(chunks))), ITL_SHARE * min(self._targets.values())
            budget = min(budget, self._latency.max_extra_decodes(work, target)) if self._latency.ready else 0
        for view, room in candidates:
            token_ids = self._forced.get(view.number, ())[: max(0, min(room, budget, MAX_DRAFTS))]
            if token_ids:
                found.append(Allotment(view.number, len(token_ids), token_ids))
                budget -= len(token_ids)
        return found

    def observe(self, plan: BatchPlan, work: Features, result: StepResult, round_seconds: float) -> None:
        self._others.observe(plan, work, result, round_seconds)

    def finished(self, view: SequenceView) -> None:
        self.force(view.number, ())
        self._targets.pop(view.number, None)
        self._others.finished(view)

    def stats(self) -> SpeculationStats | None:
        return self._others.stats()
