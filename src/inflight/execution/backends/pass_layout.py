"""Where the tokens of a pass lie in its chunks, and whether recurrent states can go on there: the host's arithmetic.

Knows chunks and positions; not what a token is, nor who keeps blocks and states.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from operator import attrgetter
from typing import NamedTuple

import numpy as np

from inflight.core.types.plan import Chunk
from inflight.execution.backends.protocol import Array, StateMetadata

_ROW, _START, _LENGTH = attrgetter("row"), attrgetter("start"), attrgetter("length")


class PassLayout(NamedTuple):
    """A pass's T tokens in C chunks, as arrays."""

    rows: Array  # int32[C], the slot of each chunk
    context_len: Array  # int32[C]
    lengths: Array  # int32[C]
    query_start: Array  # int32[C + 1]
    chunk_of: Array  # int32[T]
    row_of: Array  # int32[T], the slot of each token
    positions: Array  # int32[T]

    @property
    def longest_chunk(self) -> int:
        """No chunk has more tokens."""
        return int(self.lengths.max(initial=0))

    @property
    def longest_context(self) -> int:
        """No chunk ends behind more positions."""
        return int((self.context_len + self.lengths).max(initial=0))


def laid_out(chunks: Sequence[Chunk]) -> PassLayout:
    count = len(chunks)
    rows = np.fromiter(map(_ROW, chunks), np.int32, count)
    context_len = np.fromiter(map(_START, chunks), np.int32, count)
    lengths = np.fromiter(map(_LENGTH, chunks), np.int32, count)
    query_start = np.zeros(count + 1, np.int32)
    np.cumsum(lengths, out=query_start[1:])
    chunk_of = np.arange(count, dtype=np.int32)
    positions, row_of = context_len, rows
    if (lengths != 1).any():  # not decodes alone
        chunk_of = np.repeat(chunk_of, lengths)
        row_of = rows[chunk_of]
        positions = (context_len - query_start[:-1])[chunk_of] + np.arange(query_start[-1], dtype=np.int32)
    return PassLayout(rows, context_len, lengths, query_start, chunk_of, row_of, positions)


class StatePositions:
    """At which position the recurrent state of each row stands."""

    def __init__(self, rows: int) -> None:
        self._positions = np.zeros(rows, np.int32)  # -1: where its snapshot stood

    def start(self, row: int, snapshot: int) -> None:
        """snapshot: -1, or the one that the state begins as a copy of."""
        self._positions[row] = -1 if snapshot >= 0 else 0

    def advance(self, chunks: Sequence[Chunk], layout: PassLayout, void: Container[int]) -> StateMetadata:
        """Move the rows' states on. Raises ValueError for a chunk that does not start at its row's state position. Void
        rows start anywhere and leave no snapshot, since another request may own the slot by now."""
        rows, starts = layout.rows, layout.context_len
        stand = self._positions[rows]
        for index in np.flatnonzero((stand != starts) & (stand >= 0)).tolist():
            if chunks[index].row not in void:
                raise ValueError(
                    f"row {chunks[index].row} computes from position {starts[index]}, but its recurrent state stands "
                    f"at {stand[index]}; a state goes on from there, or from a snapshot"
                )
        self._positions[rows] = starts + layout.lengths
        due = [() if chunk.row in void else chunk.snapshots for chunk in chunks]
        entries = np.array([entry for one in due for entry in one], np.int32).reshape(-1, 2)
        snapshot_start = np.zeros(len(chunks) + 1, np.int32)
        np.cumsum([len(one) for one in due], out=snapshot_start[1:])
        return StateMetadata(
            rows, snapshot_start, np.ascontiguousarray(entries[:, 0]), np.ascontiguousarray(entries[:, 1])
        )
