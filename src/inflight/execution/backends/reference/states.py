"""Memory of recurrent layers: live states of rows, snapshots, and which of them a pass reads and writes.

Knows places and copies; what a state means is known to `recurrence`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from inflight.execution.backends.protocol import Array, AttentionMetadata, LayerState, StateMetadata
from inflight.execution.backends.reference.act import Act


class ReferenceStates:
    """States of each layer: inputs act[states, inputs, channels], and matrices [states, heads, key_dim, value_dim];
    first those of rows, then of snapshots."""

    def __init__(self, layers: Sequence[LayerState | None], rows: int, snapshots: int, act: Act):
        count = rows + snapshots
        of = [one or LayerState(0, 0) for one in layers]
        self.first_snapshot = rows
        self.inputs = [np.zeros((count, one.inputs, one.channels), act.item) for one in of]
        self.matrices = [np.zeros((count, one.heads, one.key_dim, one.value_dim), np.float32) for one in of]

    @property
    def nbytes(self) -> int:
        return sum(one.nbytes for one in (*self.inputs, *self.matrices))

    def begin(self, row: int, snapshot: int) -> None:
        for one in (*self.inputs, *self.matrices):
            one[row] = one[self.first_snapshot + snapshot]


class StateChunk(NamedTuple):
    """One chunk, as a recurrent layer sees it. tokens: rows of the pass. place: of its row's state; is_first: there is
    none before it. due: after how many of its tokens which places have a copy."""

    tokens: slice
    place: int
    is_first: bool
    due: dict[int, int]

    @property
    def length(self) -> int:
        return int(self.tokens.stop - self.tokens.start)

    def before(self, states: Array) -> Array:
        """float32 or act[…] of [states, …]: what it goes on from."""
        return np.zeros_like(states[self.place]) if self.is_first else states[self.place]


def state_chunks(metadata: AttentionMetadata, moves: StateMetadata, first_snapshot: int) -> Iterator[StateChunk]:
    """Yield the states of each chunk that has tokens."""
    starts, entries = metadata.query_start.tolist(), moves.snapshot_start.tolist()
    for chunk, (row, context) in enumerate(zip(moves.rows.tolist(), metadata.context_len.tolist(), strict=True)):
        due = range(entries[chunk], entries[chunk + 1])
        if starts[chunk] < starts[chunk + 1]:
            yield StateChunk(
                slice(starts[chunk], starts[chunk + 1]),
                row,
                context == 0,
                {int(moves.positions[one]) - context: first_snapshot + int(moves.slots[one]) for one in due},
            )
