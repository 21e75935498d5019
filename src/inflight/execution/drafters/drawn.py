"""What the passes of a drafter have drawn, as drafts. Knows results of passes; not who made them."""

from __future__ import annotations

from collections.abc import Sequence

from inflight.execution.backends.protocol import PendingPass


def drawn(pending: Sequence[PendingPass], count: int) -> list[tuple[int, ...]]:
    """Waits for the passes. What was drawn for each of so many chunks, whose numbers stand for sequences, up to where
    nothing could be drawn."""
    found: list[list[int]] = [[] for _ in range(count)]
    ended = set[int]()
    for one in pending:
        for sampled in one.result().sampled:
            if sampled.error is not None:
                ended.add(sampled.sequence_id)
            elif sampled.sequence_id not in ended:
                found[sampled.sequence_id] += sampled.token_ids
    return [tuple(one) for one in found]
