"""Memory of recurrent layers: live states of rows, snapshots, and which of them a pass reads and writes.

Knows places and copies; what a state means is known to `recurrence`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np

from inflight.execution.backends.protocol import Array, AttentionMetadata, LayerState, StateMetadata
from inflight.execution.backends.reference.act import Act


class ReferenceStates:
    """States of each layer: inputs act[states, inputs, channels], and matrices [states, heads, key_dim, value_dim];
    first those of rows, then of snapshots. They are views of uint8[states, bytes of a state], matrices first."""

    def __init__(self, layers: Sequence[LayerState | None], rows: int, snapshots: int, act: Act):
        of = [one or LayerState(0, 0) for one in layers]
        parts: list[tuple[tuple[int, ...], np.dtype[Any]]]
        parts = [((one.heads, one.key_dim, one.value_dim), np.dtype(np.float32)) for one in of]
        parts += [((one.inputs, one.channels), np.dtype(act.item)) for one in of]
        ends = list(accumulate((math.prod(shape) * item.itemsize for shape, item in parts), initial=0))
        self.first_snapshot = rows
        self._memory = np.zeros((rows + snapshots, -(-ends[-1] // 4) * 4), np.uint8)
        views = [
            self._memory[:, start:end].view(item).reshape(rows + snapshots, *shape)
            for (shape, item), start, end in zip(parts, ends, ends[1:], strict=False)
        ]
        self.matrices, self.inputs = views[: len(of)], views[len(of) :]

    @property
    def nbytes(self) -> int:
        return self._memory.nbytes

    @property
    def snapshot_memory(self) -> memoryview:
        return self._memory[self.first_snapshot :].data.cast("B")

    def begin(self, row: int, snapshot: int) -> None:
        self._memory[row] = self._memory[self.first_snapshot + snapshot]


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
