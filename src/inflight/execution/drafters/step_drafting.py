"""Drafting inside a runner's steps: protocols of a drafter, and the plan's chunks with drafts in them.

A drafter sees each plan, so that it can keep something of its own for the blocks and request slots of the model:
scheduler, prefix cache and swap then need to know nothing of it. What it drafts decides how many tokens a step yields,
and never which. A chunk may have fewer drafts than the plan gives it: it then is as much shorter, and yields the fewer
tokens. So a drafter that fails ends no request.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeVar

from msgspec import structs

from inflight.core.types.plan import BatchPlan, Capacity, Chunk
from inflight.execution.backends.protocol import Backend, PendingCopy, PendingPass
from inflight.execution.batch.input_batch import InputBatch
from inflight.execution.packer import Progress
from inflight.execution.passes import PassDecoder

log = logging.getLogger(__name__)
T = TypeVar("T")


class StepDrafter(Protocol):
    """name: in records and metrics, e.g. "draft-model"."""

    name: str

    def capture_ahead(self, batch: InputBatch, seconds: float) -> None:
        """Compile and capture passes of the drafter's own before the first step, where a device does that, over rows of
        padding; none begins when the seconds are over."""

    def leave(self, plan: BatchPlan, batch: InputBatch) -> None:
        """Finish with the slots that the plan frees, behind its copies. The batch is as the step before left it."""

    def begin(self, plan: BatchPlan, batch: InputBatch) -> None:
        """Begin a step: the batch has the plan's sequences and blocks, and the model overwrites the positions of its
        chunks."""

    def draft(self, chunks: Sequence[Chunk], batch: InputBatch) -> list[tuple[int, ...]]:
        """Return drafts for each of these chunks of the plan, at most its `num_drafts`; fewer or none where it finds
        none. They follow the chunk's first length - num_drafts positions, whose tokens the batch has. Passes draw into
        the batch as the model's do: the model draws there next, and overwrites it."""

    def computed(self, forward: Any, chunks: Sequence[Chunk], batch: InputBatch) -> None:
        """Read the model's hidden states: its layers have computed a pass over these chunks, which may be pieces of the
        plan's. The decoder keeps the states until the next pass."""

    def follow(self, chunks: Sequence[Chunk], batch: InputBatch) -> list[PendingPass]:
        """Submit the drafter's own passes behind a pass of the step, whose tokens the batch has; they belong to the
        step."""

    def copy(self, sources: Sequence[int], destinations: Sequence[int]) -> PendingCopy | None:
        """Copy the drafter's blocks as the model's are copied, in order; those of the host are numbered behind the
        device's. Returns the copy in flight (`Device.copy_blocks`)."""


class LoadedDrafter(Protocol):
    """A drafter with its weights in memory."""

    @property
    def bytes_per_block(self) -> int:
        """Bytes of its own for each KV block of the model."""

    def start(self, capacity: Capacity) -> StepDrafter:
        """Allocate memory for all blocks of the capacity, padding's and the host's."""


class DrafterSource(Protocol):
    """A drafter before it is loaded, whose shapes fit the model's. name: as the drafter's. reason: describes it."""

    @property
    def name(self) -> str: ...

    @property
    def reason(self) -> str: ...

    def load(self, backend: Backend, decoder: PassDecoder, progress: Progress | None) -> LoadedDrafter:
        """Load its weights, behind the model's and before the KV cache gets a size. decoder: of the model. Raises
        ModelError for weights that are missing, too large, or another model's."""


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


def drawn(pending: Sequence[PendingPass], count: int) -> list[tuple[int, ...]]:
    """Wait for a drafter's passes, and return the tokens drawn for each of `count` chunks, numbered as sequences, up to
    the first draw that failed."""
    found: list[list[int]] = [[] for _ in range(count)]
    ended = set[int]()
    for one in pending:
        for sampled in one.result().sampled:
            if sampled.error is not None:
                ended.add(sampled.sequence_id)
            elif sampled.sequence_id not in ended:
                found[sampled.sequence_id] += sampled.token_ids
    return [tuple(one) for one in found]
