"""Forced drafts: tokens that a grammar alone lets follow, as the executor reported them with a step's result.

Each would have to be computed anyway, so nothing is weighed: they take what is left of the step, within the ITL targets
of all that run. They come before drafts that may be wrong, which are another speculation's.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from inflight.core.estimation.latency import LatencyModel
from inflight.core.sequence import SequenceView
from inflight.core.speculation.speculation import HEADROOM, MAX_DRAFTS, Allotment, Candidate, Speculation
from inflight.core.speculation.stats import SpeculationStats
from inflight.core.types.features import Features, features
from inflight.core.types.plan import BatchPlan, Chunk, StepResult

_MIN_HELD_TOKENS = 3  # forced ones: the step in flight brings one, and the next none for a sequence that is left out


class ForcedDrafts(Speculation):
    """Speculation for sequences with forced tokens, and another for the rest."""

    def __init__(self, latency: LatencyModel, others: Speculation | None = None) -> None:
        """others: drafts for sequences without forced tokens; None: these have no drafts."""
        self._latency, self._others = latency, others or Speculation()
        self._forced: dict[int, tuple[int, ...]] = {}  # what follows the last token, by sequence
        self._targets: dict[int, float] = {}  # ITL targets of those that run, in seconds

    def force(self, number: int, token_ids: tuple[int, ...]) -> None:
        """Set the tokens that alone may follow a sequence's last one; none: any may."""
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
        held = {one.number for one in views if len(forced.get(one.number, ())) >= _MIN_HELD_TOKENS}
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
            work, target = features(BatchPlan(0, tuple(chunks))), HEADROOM * min(self._targets.values())
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
