"""The model's hidden states at the last positions of each row, until a head reads them.

A head without requests for drafts need not compute: its input is kept in the backend's memory, and read together, by
one pass over as many positions as there are, when a draft is wanted or when no more can be kept.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from inflight.core.types.plan import Chunk
from inflight.execution.backends.protocol import Activation, Array, Backend
from inflight.execution.batch.pass_layout import laid_out

# Positions of a row: more than the 32 that a step may draft, and so many that reading them together costs a position
# next to nothing of what the weights take to be read.
KEPT = 48


class RecentHidden:
    """taps: of each of the model's, memory from which a pass gathers, float32[…, M]."""

    def __init__(self, backend: Backend, taps: Sequence[Activation], width: int, rows: int, max_tokens: int) -> None:
        """taps: those of the model's decoder, M = width. Those of a whole pass lie behind all slots' positions."""
        self._backend, self._sources = backend, taps
        self._whole = rows * KEPT
        self.taps = [backend.activation(self._whole + max_tokens, width, "float32") for _ in taps]

    def keep(self, chunks: Sequence[Chunk]) -> None:
        """Keep the last positions of each chunk of the pass that was computed last."""
        layout = laid_out(chunks)
        ends = (layout.context_len + layout.lengths)[layout.chunk_of]
        at = np.flatnonzero(ends - layout.positions <= KEPT).astype(np.int32)  # of a row there is one chunk
        self._move(at, self.indices(layout.row_of[at], layout.positions[at]))

    def keep_pass(self, num_tokens: int) -> int:
        """Keep all positions of the pass that was computed last, until the next call; return the index of the first."""
        at = np.arange(num_tokens, dtype=np.int32)
        self._move(at, at + np.int32(self._whole))
        return self._whole

    def indices(self, row: int | Array, positions: Array) -> Array:
        """Return the indices of kept positions of a row, or of as many rows."""
        found: Array = np.int32(KEPT) * row + positions % KEPT
        return found

    def _move(self, at: Array, indices: Array) -> None:
        for source, kept in zip(self._sources, self.taps, strict=True):
            self._backend.move_rows(source, at, kept, indices)
