"""Plans that have the number of omitted decodes in place of their chunks, and steps that are all alike."""

from __future__ import annotations

from msgspec import Struct

from inflight.core.types.features import Features
from inflight.core.types.plan import BatchPlan


class CondensedPlan(BatchPlan, frozen=True):
    """A plan with omitted decodes: so many, which read `omitted_context` positions together."""

    omitted: int = 0
    omitted_context: int = 0

    def all_features(self, chunks: Features) -> Features:
        """Return the features of the step, given those of its chunks."""
        return Features(
            chunks.tokens + self.omitted,
            chunks.rows + self.omitted,
            chunks.samples + self.omitted,
            chunks.decode_context + self.omitted_context,
            chunks.prefill_context,
            chunks.moved_blocks,
            chunks.prompt_chunks,
        )


class AlikeSteps(Struct, frozen=True):
    """So many steps of `rows` decodes each, which read `context` positions together in the first step and one more each
    in every later one.

    Attributes:
        behind: Whether each is planned while the step before it is in flight.
        ends: Whether sequences end with the last of them, at its commit.
        chunk: Tokens of a prompt that each computes beside the decodes.
        start: Tokens of that prompt before the first of these steps.
    """

    rows: int
    context: int
    steps: int
    behind: bool = False
    ends: bool = False
    chunk: int = 0
    start: int = 0

    def features(self, index: int) -> Features:
        """Return the features of one of the steps."""
        rows, chunk, context = self.rows, self.chunk, self.context + index * self.rows
        if not chunk:
            return Features(rows, rows, rows, context, 0.0, 0, 0)
        start = self.start + index * chunk
        return Features(rows + chunk, rows + 1, rows, context, chunk * (start + chunk / 2), 0, 1)
