"""Where the tokens of a pass lie, and the states that they go on from: what each pass has of its own.

Named tuples, since those are made faster than frozen dataclasses.
"""

from __future__ import annotations

from typing import NamedTuple

from inflight.execution.backends.protocol.number_formats import Array


class AttentionMetadata(NamedTuple):
    """Where the tokens of one forward pass lie. Built and checked once for each.

    Tokens of chunk c are rows `query_start[c]:query_start[c + 1]` of every [T, …] array; `context_len[c]` tokens of its
    sequence came before. Position p of that sequence lives, for the layers of KV group g, in block `block_tables[g, c,
    p // B]`, slot `p % B`.
    """

    positions: Array  # int32[T], position of each token in its own sequence
    query_start: Array  # int32[C + 1], ascending, query_start[0] = 0, query_start[C] = T
    context_len: Array  # int32[C]
    # int32[groups, C, any width]; blocks past a chunk's last position are never read, and under a window none that lies
    # before the first that the first query sees, though from the 64 positions, aligned, in which that is, they exist
    block_tables: Array


class StateMetadata(NamedTuple):
    """With which states the chunks of a pass go on, and where copies of them are to be left."""

    rows: Array  # int32[C], whose live state each chunk reads and leaves behind
    snapshot_start: Array  # int32[C + 1], ascending: the entries below that are chunk c's, snapshot_start[c]:[c + 1]
    positions: Array  # int32[…], rising within a chunk: the state is copied as it is after so many of its tokens
    slots: Array  # int32[…], to this snapshot
