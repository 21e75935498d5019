"""Keys and values that a drafter keeps beside the model's, in the same blocks, and how much of each block holds them.

Knows which block is at which place of a row, and how many of a block's positions, from its first on, have the
drafter's keys and values. Not what these are, nor who holds a block, or why.

What is missing costs drafts that are wrong, and never tokens, so that a drafter may compute it when a sequence is next
drafted for, or before. A block that is shared, cached, or copied to the host and back keeps what it has. Positions that
the model writes anew lose what the drafter had there: drafts that were wrong are taken back so. Blocks that come from
anywhere else than the host have the model's part alone.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from inflight.core.types.plan import HOST, BatchPlan, Capacity
from inflight.execution.backends.protocol import Device, KVCache, KVShape, PendingCopy


class DraftKV:
    """Over the tables of the first KV group, whose layers see all positions. cache: of the device, with as many blocks
    as the model's has. padding_row: the slots' row for padding."""

    def __init__(self, backend: Device, shape: KVShape, capacity: Capacity) -> None:
        self.cache: KVCache = backend.kv_cache(shape, capacity.num_blocks + 1, capacity.host_blocks)
        self._backend, self._block_size, self._padding = backend, capacity.block_size, capacity.num_blocks
        self.padding_row = capacity.max_rows
        self._filled = np.zeros(capacity.num_blocks + 1 + capacity.host_blocks, np.int32)
        width = -(-capacity.max_model_len // capacity.block_size)
        self._tables = np.full((capacity.max_rows + 1, width), self._padding, np.int32)
        self._num_blocks = np.zeros(capacity.max_rows + 1, np.int32)  # entries used of each table
        self._void: set[int] = set()  # rows whose blocks are not theirs

    def begin(self, plan: BatchPlan) -> None:
        """Begin a plan: positions that its chunks compute, and blocks that come from elsewhere, have no draft keys and
        values any more."""
        for transfer in plan.transfers:
            if transfer.kind in ("load", "receive") and transfer.tier != HOST:
                self._filled[list(transfer.blocks)] = 0
        for new in plan.new_requests:
            self._void.discard(new.row)
            self._num_blocks[new.row] = 0
        for chunk in plan.chunks:
            if chunk.new_blocks and chunk.row not in self._void:
                used = self._num_blocks[chunk.row]
                self._num_blocks[chunk.row] = end = used + len(chunk.new_blocks)
                self._tables[chunk.row, used:end] = chunk.new_blocks
        count, size = len(plan.chunks), self._block_size
        rows = np.fromiter((chunk.row for chunk in plan.chunks), np.int32, count)
        starts = np.fromiter((chunk.start for chunk in plan.chunks), np.int32, count)
        np.minimum.at(self._filled, self._tables[rows, starts // size], starts % size)
        for chunk in plan.chunks:
            if chunk.start % size + chunk.length > size:
                first, end = chunk.start // size + 1, -(-(chunk.start + chunk.length) // size)
                self._filled[self._tables[chunk.row, first:end]] = 0

    def computed(self, row: int, end: int) -> int:
        """How many of the row's first `end` positions have keys and values of the drafter, one after the other."""
        if not end:
            return 0
        filled = self._filled[self._tables[row, : -(-end // self._block_size)]]
        short = np.flatnonzero(filled < self._block_size)
        return end if not len(short) else min(end, int(short[0]) * self._block_size + int(filled[short[0]]))

    def computes(self, row: int, end: int) -> None:
        """Note that the drafter computes the row's missing positions up to `end`."""
        if row in self._void:
            return
        count = -(-end // self._block_size)
        table, places = self._tables[row, :count], np.arange(count, dtype=np.int32)
        held = np.minimum(end - places * self._block_size, self._block_size)
        self._filled[table] = np.maximum(self._filled[table], held)

    def copy(self, sources: Sequence[int], destinations: Sequence[int]) -> PendingCopy | None:
        """Copy blocks, with the number of filled positions at this moment; later ones do not count in the copy."""
        for source, destination in zip(sources, destinations, strict=True):
            self._filled[destination] = self._filled[source]
        return self._backend.copy_blocks(self.cache, sources, destinations)

    def discard(self, rows: Sequence[int]) -> None:
        """Their blocks may be others' by now."""
        self._void.update(rows)
        self._tables[list(rows)] = self._padding
