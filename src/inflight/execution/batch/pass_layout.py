"""Where the tokens of a pass lie in its chunks."""

from __future__ import annotations

from collections.abc import Sequence
from operator import add
from typing import Any, NamedTuple

import numpy as np

from inflight.core.types.plan import Chunk
from inflight.execution.backends.protocol import Array, AttentionMetadata, StateMetadata

ONE_TEXT = 2**31 - 1  # position of a second text that does not exist


class PassLayout(NamedTuple):
    """A pass's T tokens in C chunks, as arrays."""

    rows: Array  # int32[C], the request slot of each chunk
    context_len: Array  # int32[C]
    lengths: Array  # int32[C]
    query_start: Array  # int32[C + 1]
    chunk_of: Array  # int32[T]
    row_of: Array  # int32[T], the request slot of each token
    positions: Array  # int32[T]
    longest_chunk: int  # no chunk has more tokens
    longest_context: int  # no chunk ends behind more positions


class AdaptedRows(NamedTuple):
    """Rows of a pass's activations, and the packed adapter that they are computed with."""

    rows: slice
    adapter: Any


class PassInputs(NamedTuple):
    rows: Array  # int32[C], the request slot of each chunk
    chunk_of: Array  # int32[T], the chunk of each token
    token_ids: Array  # int32[T]
    metadata: AttentionMetadata
    states: StateMetadata | None = None  # of a model with recurrent layers
    second_text_at: Array | None = (
        None  # int32[C], positions at which second texts of pairs begin; None: no chunk has one
    )
    adapted: tuple[AdaptedRows, ...] = ()

    def token_types(self) -> Array:
        """int32[T]: 1 for tokens of the second text of a pair."""
        if self.second_text_at is None:
            return np.zeros_like(self.metadata.positions)
        return (self.metadata.positions >= self.second_text_at[self.chunk_of]).astype(np.int32)


def laid_out(chunks: Sequence[Chunk]) -> PassLayout:
    count = len(chunks)
    starts, counts = [one.start for one in chunks], [one.length for one in chunks]
    rows = np.array([one.row for one in chunks], np.int32)
    context_len, lengths = np.array(starts, np.int32), np.array(counts, np.int32)
    longest_context = max(map(add, starts, counts), default=0)
    if counts.count(1) == count:  # decodes alone
        query_start = np.arange(count + 1, dtype=np.int32)
        of_tokens = query_start[:-1], rows, context_len
    else:
        query_start = np.zeros(count + 1, np.int32)
        np.cumsum(lengths, out=query_start[1:])
        chunk_of = np.repeat(np.arange(count, dtype=np.int32), lengths)
        positions = (context_len - query_start[:-1])[chunk_of] + np.arange(query_start[-1], dtype=np.int32)
        of_tokens = chunk_of, rows[chunk_of], positions
    return PassLayout(rows, context_len, lengths, query_start, *of_tokens, max(counts, default=0), longest_context)
