"""Opaque handles of a backend's memory and packed weights; only the backend reads them."""

from __future__ import annotations

from typing import Any, Protocol

from inflight.execution.backends.protocol.layer_memory import KVShape


class KVCache(Protocol):
    """Keys and values of all layers, in blocks: [blocks, bytes of a block]."""

    @property
    def shape(self) -> KVShape: ...

    @property
    def num_blocks(self) -> int:
        """Return the number of blocks, those in the host's memory included."""

    @property
    def nbytes(self) -> int: ...


class StateCache(Protocol):
    """Recurrent layers' memory: a live state of all of them for each row, and snapshots, which are copies of states."""

    @property
    def nbytes(self) -> int: ...

    @property
    def snapshot_memory(self) -> memoryview | None:
        """Return the bytes of the snapshots, one behind the other; None: they are not in this machine's memory."""

    def begin(self, row: int, snapshot: int) -> None:
        """Copy the snapshot to the row's live state."""


# Memory for rows of numbers, written anew by every pass. An operation reads the rows that were written last, and writes
# as many. Exposes .nbytes.
Activation = Any

# Packed weights: what a backend makes of them is its own.
Vector = Any  # float32[N]: the weight of a norm
Rope = Any  # a RopeTable
Linear = Any  # a weight matrix [N, K] with optional bias, packed; exposes .rows (N), .columns (K), .nbytes
GateUp = Any  # gate and up projections packed together; exposes .rows (F), .columns (E), .nbytes
Experts = Any  # a GateUp and a Linear [E, F] for each of X experts, and a Routing; exposes .count (X)
Heads = Any  # a weight matrix [N, K] for each of H heads; exposes .count (H), .rows (N), .columns (K), .nbytes
Table = Any  # an embedding table [V, E]; exposes .rows, .columns, .nbytes, and .linear (Linear, or None when untied)
Adapter = Any  # what it adds to products of layers, packed; exposes .nbytes
InputBatch = Any  # `execution.batch.InputBatch`, with what a backend keeps of it on its device
