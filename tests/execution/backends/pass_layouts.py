"""Layouts of passes over chunks that tests write down: sequence, start and length of each."""

from __future__ import annotations

from collections.abc import Sequence

from inflight.core.types.plan import Chunk
from inflight.execution.backends.pass_layout import PassLayout, laid_out


def layout_of(chunks: Sequence[tuple[int, int, int]], padding_row: int) -> PassLayout:
    """Sequence -1 is the padding row."""
    return laid_out([Chunk(i, i if i >= 0 else padding_row, start, count, (), 0) for i, start, count in chunks])
