"""Snapshots of recurrent state, from what plans tell of them: taken, begun from, written over.

Knows slots by number, and for which sequence each was written last. A record does not say when the prefix cache lost
what a snapshot stood behind, and its slot was free again: a slot counts as used from its first snapshot on, which is
the most that can be.
"""

from __future__ import annotations

from inflight.records.schema import StepRecord


class SnapshotHistory:
    """Counts so far. taken: snapshots. hits: rows that began from one. evicted: those that gave their slot to another
    sequence's; what a sequence takes in the place of its own one before is none."""

    def __init__(self) -> None:
        self.taken = 0
        self.hits = 0
        self.evicted = 0
        self._takers: dict[int, int] = {}  # slot → sequence

    @property
    def used(self) -> int:
        """Slots."""
        return len(self._takers)

    def step(self, record: StepRecord) -> None:
        self.hits += sum(new.snapshot >= 0 for new in record.plan.new_requests)
        for chunk in record.plan.chunks:
            for _, slot in chunk.snapshots:
                self.taken += 1
                self.evicted += self._takers.get(slot, chunk.sequence_id) != chunk.sequence_id
                self._takers[slot] = chunk.sequence_id
