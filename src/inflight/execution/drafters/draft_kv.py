"""Keys and values that a drafter keeps beside the model's, in the same blocks, and how much of each block holds them.

Of each block it keeps how many positions, from the first on, have the drafter's keys and values; which block is at
which index of a row is the input batch's. What is missing costs drafts that are wrong, and never tokens, so that a
drafter may compute it when a sequence is next drafted for, or before. A block that is shared, cached, or copied to the
host and back keeps what it has. Positions that the model writes anew lose what the drafter had there: drafts that were
wrong are taken back so. Blocks that come from anywhere else than the host have the model's part alone.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from inflight.core.types.plan import HOST, BatchPlan, Capacity
from inflight.execution.backends.protocol import Device, KVCache, KVShape, PendingCopy
from inflight.execution.batch.input_batch import InputBatch


class DraftKV:
    """Over the tables of the first KV group, whose layers see all positions. cache: of the device, with as many blocks
    as the model's has."""

    def __init__(self, backend: Device, shape: KVShape, capacity: Capacity) -> None:
        self.cache: KVCache = backend.kv_cache(shape, capacity.num_blocks + 1, capacity.host_blocks)
        self._backend, self._block_size = backend, capacity.block_size
        self._filled = np.zeros(capacity.num_blocks + 1 + capacity.host_blocks, np.int32)

    def begin(self, plan: BatchPlan, batch: InputBatch) -> None:
        """Begin a plan that the batch has: positions that its chunks compute, and blocks that come from elsewhere, have
        no draft keys and values any more."""
        for transfer in plan.transfers:
            if transfer.kind in ("load", "receive") and transfer.tier != HOST:
                self._filled[list(transfer.blocks)] = 0
        count, size, tables = len(plan.chunks), self._block_size, batch.block_tables[0]
        rows = np.fromiter((chunk.row for chunk in plan.chunks), np.int32, count)
        starts = np.fromiter((chunk.start for chunk in plan.chunks), np.int32, count)
        np.minimum.at(self._filled, tables[rows, starts // size], starts % size)
        for chunk in plan.chunks:
            if chunk.start % size + chunk.length > size:
                first, end = chunk.start // size + 1, -(-(chunk.start + chunk.length) // size)
                self._filled[tables[chunk.row, first:end]] = 0

    def num_computed(self, batch: InputBatch, row: int, end: int) -> int:
        """Return how many of the row's first `end` positions have keys and values of the drafter, one after the
        other."""
        if not end:
            return 0
        filled = self._filled[batch.block_tables[0, row, : -(-end // self._block_size)]]
        short = np.flatnonzero(filled < self._block_size)
        return end if not len(short) else min(end, int(short[0]) * self._block_size + int(filled[short[0]]))

    def note_computed(self, batch: InputBatch, row: int, end: int) -> None:
        """Note that the drafter computes the row's missing positions up to `end`."""
        if row in batch.discarded:
            return
        count = -(-end // self._block_size)
        table, indices = batch.block_tables[0, row, :count], np.arange(count, dtype=np.int32)
        positions = np.minimum(end - indices * self._block_size, self._block_size)
        self._filled[table] = np.maximum(self._filled[table], positions)

    def copy(self, sources: Sequence[int], destinations: Sequence[int]) -> PendingCopy | None:
        """Copy blocks, with the number of filled positions at this moment; later ones do not count in the copy."""
        for source, destination in zip(sources, destinations, strict=True):
            self._filled[destination] = self._filled[source]
        return self._backend.copy_blocks(self.cache, sources, destinations)
