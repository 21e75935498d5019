"""Drafts that are surely right: what a grammar lets follow alone, as the executor told it with a step's result.

Knows numbers of sequences and tokens; no grammar. They take what nobody else wants (`draft_planner`), and each would
have to be computed anyway: nothing is weighed, and nothing is lost.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from inflight.core.estimation.latency import LatencyModel
from inflight.core.sequence import SequenceView
from inflight.core.speculation.speculation import MOST, Allotment, Candidate
from inflight.core.types.features import Features, features
from inflight.core.types.plan import BatchPlan, Chunk, StepResult

_WORTH_WAITING = 3  # tokens to come, of which the step in flight brings one, and another none for this sequence
_HEADROOM = 0.9  # of an ITL target: predictions err


class ForcedDrafts:
    """Speculation for those that it was told of. A step with drafts keeps the ITL targets of all that run."""

    def __init__(self, latency: LatencyModel) -> None:
        self._latency = latency
        self._forced: dict[int, tuple[int, ...]] = {}  # number of a sequence → what follows its last token
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

    def waits(self, step: int) -> bool:
        return False

    def turns(self, step: int, running: int, ahead: bool) -> Collection[int]:
        return self._forced.keys()

    def holds(self, step: int, view: SequenceView) -> bool:
        return len(self._forced[view.number]) >= _WORTH_WAITING

    def allot(
        self, step: int, chunks: Sequence[Chunk], candidates: Sequence[Candidate], budget: int
    ) -> list[Allotment]:
        found: list[Allotment] = []
        if self._targets:
            held, target = features(BatchPlan(step, tuple(chunks))), _HEADROOM * min(self._targets.values())
            budget = min(budget, self._latency.most_tokens(held, target)) if self._latency.ready else 0
        for view, room in candidates:
            token_ids = self._forced[view.number][: max(0, min(room, budget, MOST))]
            if token_ids:
                found.append(Allotment(view.number, len(token_ids), token_ids))
                budget -= len(token_ids)
        return found

    def observe(self, plan: BatchPlan, held: Features, result: StepResult, round_seconds: float) -> None:
        """Nothing to learn."""

    def finished(self, view: SequenceView) -> None:
        self.told(view.number, ())
        if self._targets:
            self._targets.pop(view.number, None)

    def stats(self) -> None:
        return None
