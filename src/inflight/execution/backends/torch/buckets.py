"""Sizes of decode passes that graphs are captured for, and passes that are filled up to one.

Knows counts and chunks; not what is computed of them, or how it is captured.
"""

from __future__ import annotations

from collections.abc import Sequence

from inflight.core.types.plan import Chunk


def bucket_sizes(most: int) -> tuple[int, ...]:
    """Rising: 1, 2, 4, 8, then each sixteenth, and `most`, the largest. At most fifteen rows of a pass, and seven of a
    small one, are filled up in vain."""
    return tuple(sorted({size for size in (1, 2, 4, 8, *range(16, most, 16)) if size < most} | {most}))


def bucket_of(chunks: Sequence[Chunk], sizes: Sequence[int]) -> int | None:
    """The least of `sizes`, which rise, that holds these chunks; None where one of them has several tokens, or none
    holds them."""
    if not chunks or any(chunk.length != 1 for chunk in chunks):
        return None
    return next((size for size in sizes if size >= len(chunks)), None)


def filled_up(chunks: Sequence[Chunk], bucket: int | None, row: int) -> Sequence[Chunk]:
    """Behind them so many of one token of the padding row, each at position 0."""
    if bucket is None:
        return chunks
    return [*chunks, *[Chunk(-1, row, 0, 1, (), 0)] * (bucket - len(chunks))]
