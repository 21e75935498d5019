"""Drafts that are surely right: what a grammar lets follow alone, as the executor told it with a step's result.

Knows numbers of sequences and tokens; no grammar. They take what nobody else wants (`draft_planner`), and each would
have to be computed anyway: nothing is weighed, and nothing is lost. They come before drafts that may be wrong: who has
forced ones is not asked about for others, and where nobody has any, those others' speculation is all there is.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from inflight.core.estimation.latency import LatencyModel
from inflight.core.sequence import SequenceView
from inflight.core.speculation.speculation import HEADROOM, MOST, Allotment, Candidate, Speculation
from inflight.core.speculation.stats import SpeculationStats
from inflight.core.types.features import Features, features
from inflight.core.types.plan import BatchPlan, Chunk, StepResult

_WORTH_WAITING = 3  # tokens to come, of which the step in flight brings one, and another none for this sequence


class ForcedDrafts:
    """Speculation for those that it was told of, and another for the rest. A step with drafts keeps the ITL targets of
    all that run."""

    def __init__(self, latency: LatencyModel, others: Speculation | None = None) -> None:
        """others: for whom nothing is forced; None: those have no drafts."""
        self._latency, self._others = latency, others
        self._forced: dict[int, tuple[int, ...]] = {}  # number of a sequence → what follows its last token
        self._others_turn: Collection[int] | None = ()  # of this step; None: everybody's
        self._targets: dict[int, float] = {}  # ITL targets of those that run, in seconds

    def told(self, number: int, token_ids: tuple[int, ...]) -> None:
        """This alone may follow now; nothing is known where it is empty."""
        if token_ids:
            self._forced[number] = token_ids
        elif self._forced:
            self._forced.pop(number, None)

    def began(self, view: SequenceView) -> None:
        if view.itl_target is not None:
            self._targets[view.number] = view.itl_target
        if self._others is not None:
            self._others.began(view)

    def waits(self, step: int) -> bool:
        return self._others is not None and self._others.waits(step)

    def turns(self, step: int, running: int, ahead: bool) -> Collection[int] | None:
        if self._others is None:
            return self._forced.keys()
        self._others_turn = turns = self._others.turns(step, running, ahead)
        return turns if turns is None or not self._forced else {*turns, *self._forced}

    def holds(self, step: int, view: SequenceView) -> bool:
        forced = self._forced.get(view.number)
        if forced is None:
            return self._others is not None and self._others.holds(step, view)
        return len(forced) >= _WORTH_WAITING

    def allot(
        self, step: int, chunks: Sequence[Chunk], candidates: Sequence[Candidate], budget: int
    ) -> list[Allotment]:
        found = self._allot_forced(chunks, candidates, budget) if self._forced else []
        left = budget - sum(one.num_drafts for one in found)
        if self._others is None or left <= 0:
            return found
        turns = self._others_turn
        rest = [one for one in candidates if turns is None or one.view.number in turns]
        if self._forced:
            rest = [one for one in rest if one.view.number not in self._forced]
        return found + self._others.allot(step, chunks, rest, left) if rest else found

    def _allot_forced(self, chunks: Sequence[Chunk], candidates: Sequence[Candidate], budget: int) -> list[Allotment]:
        found: list[Allotment] = []
        if self._targets:
            held, target = features(BatchPlan(0, tuple(chunks))), HEADROOM * min(self._targets.values())
            budget = min(budget, self._latency.most_tokens(held, target)) if self._latency.ready else 0
        for view, room in candidates:
            token_ids = self._forced.get(view.number, ())[: max(0, min(room, budget, MOST))]
            if token_ids:
                found.append(Allotment(view.number, len(token_ids), token_ids))
                budget -= len(token_ids)
        return found

    def observe(self, plan: BatchPlan, held: Features, result: StepResult, round_seconds: float) -> None:
        if self._others is not None:
            self._others.observe(plan, held, result, round_seconds)

    def finished(self, view: SequenceView) -> None:
        self.told(view.number, ())
        if self._targets:
            self._targets.pop(view.number, None)
        if self._others is not None:
            self._others.finished(view)

    def stats(self) -> SpeculationStats | None:
        return None if self._others is None else self._others.stats()
