"""A drafter inside of the executor: what a step asks of it.

Knows the order in which it is asked, and nothing of how drafts are made. It sees each plan, so that it can keep
something of its own in the blocks and rows of the model's: scheduler, prefix cache and swap then need to know nothing
of it. What it drafts decides how many tokens a step yields, and never which.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from inflight.core.types.plan import BatchPlan, Chunk
from inflight.execution.backends.protocol import PendingCopy, PendingPass, RequestSlots


class StepDrafter(Protocol):
    """name: in records and metrics, e.g. "draft-model"."""

    name: str

    def capture_ahead(self, slots: RequestSlots, seconds: float) -> None:
        """Before the first step: passes of the drafter's own are compiled and captured, where a device does that, over
        rows of padding; none begins when the seconds are over."""

    def begin(self, plan: BatchPlan, slots: RequestSlots) -> None:
        """Begin a step, behind its copies: rows and blocks change owners, and the model overwrites the positions of the
        plan's chunks. The slots are still as the step before left them."""

    def draft(self, chunks: Sequence[Chunk], slots: RequestSlots) -> list[tuple[int, ...]]:
        """Drafts for each of these chunks of the plan, at most its `num_drafts`; fewer, or none, where it has no idea.
        They follow the chunk's first length - num_drafts positions, which the slot has the tokens of; it has the
        chunk's blocks, too. Slots are used as a pass uses them: what is drawn there stands where the model draws next,
        which writes it over."""

    def computed(self, batch: Any, chunks: Sequence[Chunk], slots: RequestSlots) -> None:
        """Read the model's hidden states: its layers have computed a pass over these chunks, which may be pieces of the
        plan's. The decoder keeps the states until the next pass."""

    def follow(self, chunks: Sequence[Chunk], slots: RequestSlots) -> list[PendingPass]:
        """Submit the drafter's own passes behind a pass of the step, whose tokens the slots have; they belong to the
        step."""

    def copy(self, sources: Sequence[int], destinations: Sequence[int]) -> PendingCopy | None:
        """Copy the drafter's blocks as the model's are copied, in order; those of the host are numbered behind the
        device's. Returns the copy in flight (`Device.copy_blocks`)."""

    def discard(self, rows: Sequence[int]) -> None:
        """Note that a step of these rows failed: their blocks are not theirs until a new sequence starts in them."""
