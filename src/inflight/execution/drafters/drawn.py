"""Collects the draws of a drafter's passes as drafts."""

from __future__ import annotations

from collections.abc import Sequence

from inflight.execution.backends.protocol import PendingPass


def drawn(pending: Sequence[PendingPass], count: int) -> list[tuple[int, ...]]:
    """Wait for the passes, and return the tokens drawn for each of `count` chunks, numbered as sequences, up to the
    first draw that failed."""
    found: list[list[int]] = [[] for _ in range(count)]
    ended = set[int]()
    for one in pending:
        for sampled in one.result().sampled:
            if sampled.error is not None:
                ended.add(sampled.sequence_id)
            elif sampled.sequence_id not in ended:
                found[sampled.sequence_id] += sampled.token_ids
    return [tuple(one) for one in found]
