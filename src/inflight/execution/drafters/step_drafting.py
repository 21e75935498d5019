"""Drafting in a runner's steps: the plan's chunks with drafts in them, and the end of drafting where it fails.

A chunk may have fewer drafts than the plan gives it: it then is as much shorter, and yields the fewer tokens. So a
broken drafter, whatever it does, ends no request. Drafts are made by a `StepDrafter`.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from msgspec import structs

from inflight.core.types.plan import BatchPlan, Chunk
from inflight.execution.backends.protocol import PendingCopy, PendingPass
from inflight.execution.batch.input_batch import InputBatch
from inflight.execution.drafters.step_drafter import StepDrafter

log = logging.getLogger(__name__)
T = TypeVar("T")


class StepDrafting:
    """seconds: that the last step's drafts took, from the plan to the host's knowing them. undrafted: numbers of the
    sequences for which it made none of those that it was to make."""

    def __init__(self, drafter: StepDrafter, batch: InputBatch) -> None:
        self._drafter: StepDrafter | None = drafter
        self._batch = batch
        self.seconds = 0.0
        self.undrafted: tuple[int, ...] = ()

    def capture_ahead(self, seconds: float) -> None:
        self._ask(lambda drafter: drafter.capture_ahead(self._batch, seconds), None)

    def leave(self, plan: BatchPlan) -> None:
        self._ask(lambda drafter: drafter.leave(plan, self._batch), None)

    def drafted(self, plan: BatchPlan) -> tuple[Chunk, ...]:
        """Return the plan's chunks with drafts filled in, once the batch has the plan."""
        self.seconds, self.undrafted = 0.0, ()
        self._ask(lambda drafter: drafter.begin(plan, self._batch), None)
        if not any(map(_is_open, plan.chunks)):
            return plan.chunks
        started = time.perf_counter()
        drafts = self._drafts(plan)
        self.seconds = time.perf_counter() - started
        if self._drafter is not None:  # one that is broken makes none, for good: that counts as wrong
            self.undrafted = tuple(one.sequence_id for one in plan.chunks if _is_open(one) and not drafts.get(one.row))
        return tuple(_filled(one, drafts.get(one.row, ())) if _is_open(one) else one for one in plan.chunks)

    def _drafts(self, plan: BatchPlan) -> dict[int, tuple[int, ...]]:
        """Draft for the open chunks, by row; not for new sequences, which a drafter has computed nothing of."""
        new = {one.row for one in plan.new_requests}
        asked = [one for one in plan.chunks if _is_open(one) and one.row not in new]
        if self._drafter is None or not asked:
            return {}
        none: list[tuple[int, ...]] = [()] * len(asked)
        found = self._ask(lambda drafter: drafter.draft(asked, self._batch), none)
        return {one.row: token_ids for one, token_ids in zip(asked, found, strict=True)}

    def computed(self, forward: Any, chunks: Sequence[Chunk]) -> None:
        self._ask(lambda drafter: drafter.computed(forward, chunks, self._batch), None)

    def follow(self, chunks: Sequence[Chunk]) -> list[PendingPass]:
        none: list[PendingPass] = []
        return self._ask(lambda drafter: drafter.follow(chunks, self._batch), none)

    def copy(self, sources: Sequence[int], destinations: Sequence[int]) -> PendingCopy | None:
        return self._ask(lambda drafter: drafter.copy(sources, destinations), None)

    def _ask(self, question: Callable[[StepDrafter], T], otherwise: T) -> T:
        """Return the drafter's answer; once it has failed, the other answer."""
        if self._drafter is None:
            return otherwise
        try:
            return question(self._drafter)
        except Exception as fault:  # whatever it is, the model computes without
            name, self._drafter = self._drafter.name, None
            log.error("drafting (%s) failed, and there are no drafts from now on", name, exc_info=fault)
            return otherwise


def _is_open(chunk: Chunk) -> bool:
    """Whether its drafts are for the executor to make."""
    return chunk.num_drafts > len(chunk.draft_token_ids)


def _filled(chunk: Chunk, drafts: tuple[int, ...]) -> Chunk:
    return structs.replace(
        chunk,
        length=chunk.length - chunk.num_drafts + len(drafts),
        sample=1 + len(drafts),
        num_drafts=len(drafts),
        draft_token_ids=drafts,
    )
