"""Opaque handles of a backend's memory and packed weights, which only the backend reads; and adapters' matrices."""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

from msgspec import Struct

from inflight.execution.backends.protocol.layer_memory import KVShape
from inflight.execution.backends.protocol.number_formats import Array


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


# Low-rank adapters (LoRA, arXiv 2106.09685): matrices that are added to products of layers.


class LowRank(NamedTuple):
    """To outputs first … first + N - 1 of a product of x is added act(x · downᵀ) · upᵀ, sums in float32. down: [R, K],
    up: [N, R], float32, float16 or uint16 (bf16); the adapter's factor is in `up`."""

    first: int
    down: Array
    up: Array


class Delta(Struct, frozen=True):
    """Low-rank matrices to add to a matrix's sums and bias before any other step; of a gated one to the sums of gate,
    outputs 0 … F - 1, and of up, F … 2F - 1. No output is in two parts."""

    weight: Linear | GateUp
    parts: tuple[LowRank, ...]
