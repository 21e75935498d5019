"""The model's hidden states at the last positions of each row, until a head reads them.

A head that nobody asks for drafts need not compute: what it will read is kept, and read together, by one pass over as
many positions as there are, when a draft is wanted or when no more can be kept. Knows rows and positions, in the host's
memory; not what a head makes of a hidden state.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from inflight.core.types.plan import Chunk
from inflight.execution.backends import arrays
from inflight.execution.backends.host import HostBackend
from inflight.execution.backends.pass_layout import laid_out
from inflight.execution.backends.protocol import Activation, Array

# Positions of a row: more than the 32 that a step may draft, and so many that reading them together costs a position
# next to nothing of what the weights take to be read.
KEPT = 48


class RecentHidden:
    """taps: of each of the model's, memory from which a pass gathers, float32[…, M]."""

    def __init__(self, backend: HostBackend[Any], taps: Sequence[Activation], rows: int, max_tokens: int) -> None:
        """taps: those of the model's decoder. Behind the rows' places there are those of a whole pass."""
        self._sources = taps
        self._whole = rows * KEPT
        widths = [tap.array.shape[1] for tap in taps]  # type: ignore[attr-defined]  # memory of the host
        self._held = [arrays.empty((self._whole + max_tokens, width), np.float32) for width in widths]
        self.taps: list[Activation] = [backend.activation_of(held) for held in self._held]

    def keep(self, chunks: Sequence[Chunk]) -> None:
        """The last positions of each chunk of the pass that was computed last."""
        layout = laid_out(chunks)
        # Of positions that have one place the last is kept: assignments are done in order.
        self._write(self.places(layout.row_of, layout.positions), len(layout.positions))

    def hold_pass(self, num_tokens: int) -> int:
        """Every position of the pass that was computed last, until the next call; returns the place of the first."""
        self._write(slice(self._whole, self._whole + num_tokens), num_tokens)
        return self._whole

    def places(self, row: int | Array, positions: Array) -> Array:
        """Of kept positions of a row, or of as many rows."""
        found: Array = np.int32(KEPT) * row + positions % KEPT
        return found

    def _write(self, at: Array | slice, count: int) -> None:
        for held, source in zip(self._held, self._sources, strict=True):
            held[at] = source.array[:count]  # type: ignore[attr-defined]
