"""Eager speculation: every draft that a drafter has is computed. For tests and measurements; it learns nothing."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from inflight.core.sequence import SequenceView
from inflight.core.speculation.drafter import Drafter, ExecutorDrafter
from inflight.core.speculation.speculation import MOST, Allotment, Candidate
from inflight.core.types.features import Features
from inflight.core.types.plan import BatchPlan, Chunk, StepResult


class EagerSpeculation:
    def __init__(self, drafter: Drafter | ExecutorDrafter, most: int = MOST, holds: bool = False):
        """most: drafts of a sequence in a step. holds: whether all are left out of steps that are planned ahead, to be
        drafted for behind them."""
        self._drafter = drafter
        self._most, self._holds = most, holds
        self._running: set[int] = set()

    def began(self, view: SequenceView) -> None:
        self._running.add(view.number)

    def waits(self, step: int) -> bool:
        return False

    def turns(self, step: int, running: int, ahead: bool) -> Collection[int]:
        return self._running

    def holds(self, step: int, view: SequenceView) -> bool:
        return self._holds

    def allot(
        self, step: int, chunks: Sequence[Chunk], candidates: Sequence[Candidate], budget: int
    ) -> list[Allotment]:
        """The budget is shared out evenly between those that have any."""
        found: list[Allotment] = []
        candidates = [one for one in candidates if one.room > 0]
        for place, (view, room) in enumerate(candidates):
            most = min(-(-budget // (len(candidates) - place)), room, self._most)
            if most > 0 and (one := self._drafts(view, most)).num_drafts:
                found.append(one)
                budget -= one.num_drafts
        return found

    def observe(self, plan: BatchPlan, held: Features, result: StepResult, round_seconds: float) -> None:
        """Nothing to learn."""

    def finished(self, view: SequenceView) -> None:
        self._running.discard(view.number)
        if not isinstance(self._drafter, ExecutorDrafter):
            self._drafter.finished(view)

    def stats(self) -> None:
        return None

    def _drafts(self, view: SequenceView, most: int) -> Allotment:
        if isinstance(self._drafter, ExecutorDrafter):
            return Allotment(view.number, min(most, self._drafter.most), ())
        token_ids = self._drafter.propose(view, most).token_ids
        return Allotment(view.number, len(token_ids), token_ids)
