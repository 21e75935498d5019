"""Protocol of a drafter inside the executor, in the order in which a step asks it.

It sees each plan, so that it can keep something of its own for the blocks and request slots of the model: scheduler,
prefix cache and swap then need to know nothing of it. What it drafts decides how many tokens a step yields, and never
which.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from inflight.core.types.plan import BatchPlan, Chunk
from inflight.execution.backends.protocol import PendingCopy, PendingPass
from inflight.execution.batch.input_batch import InputBatch


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
