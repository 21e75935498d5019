"""Eager speculation: compute every draft that a drafter has, and learn nothing."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from inflight.core.sequence import SequenceView
from inflight.core.speculation.speculation import (
    MAX_DRAFTS,
    Allotment,
    DraftCandidate,
    Drafter,
    ExecutorDrafter,
    Speculation,
)
from inflight.core.types.plan import Chunk


class EagerSpeculation(Speculation):
    def __init__(self, drafter: Drafter | ExecutorDrafter, most: int = MAX_DRAFTS, holds: bool = False):
        """most: drafts of a sequence in a step. holds: whether steps that are planned ahead leave sequences out."""
        self._drafter = drafter
        self._most, self._holds = most, holds
        self._running: set[int] = set()

    def began(self, view: SequenceView) -> None:
        self._running.add(view.number)

    def due(self, step: int) -> Collection[int] | None:
        return self._running

    def hold_back(self, step: int, views: Sequence[SequenceView], running: int) -> Collection[int]:
        return {view.number for view in views} if self._holds else ()

    def allot(
        self, step: int, chunks: Sequence[Chunk], candidates: Sequence[DraftCandidate], budget: int
    ) -> list[Allotment]:
        """Share the budget evenly among the candidates with drafts."""
        found: list[Allotment] = []
        candidates = [one for one in candidates if one.room > 0]
        for index, (view, room) in enumerate(candidates):
            most = min(-(-budget // (len(candidates) - index)), room, self._most)
            if most > 0 and (one := self._drafts(view, most)).num_drafts:
                found.append(one)
                budget -= one.num_drafts
        return found

    def finished(self, view: SequenceView) -> None:
        self._running.discard(view.number)
        if not isinstance(self._drafter, ExecutorDrafter):
            self._drafter.finished(view)

    def _drafts(self, view: SequenceView, most: int) -> Allotment:
        if isinstance(self._drafter, ExecutorDrafter):
            return Allotment(view.number, min(most, self._drafter.max_drafts), ())
        token_ids = self._drafter.propose(view, most).token_ids
        return Allotment(view.number, len(token_ids), token_ids)
