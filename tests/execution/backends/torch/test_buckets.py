"""Sizes of passes that graphs are captured for, and how chunks are filled up to one."""

from __future__ import annotations

from itertools import pairwise

import pytest

from inflight.core.types.plan import Chunk
from inflight.execution.backends.torch.buckets import bucket_of, bucket_sizes, filled_up


def decode(row: int, length: int = 1) -> Chunk:
    return Chunk(row, row, 7, length, (), 1)


@pytest.mark.parametrize(
    ("most", "sizes"),
    [(1, (1,)), (4, (1, 2, 4)), (10, (1, 2, 4, 8, 10)), (16, (1, 2, 4, 8, 16)), (40, (1, 2, 4, 8, 16, 32, 40))],
)
def test_sizes_rise_to_the_largest(most: int, sizes: tuple[int, ...]) -> None:
    assert bucket_sizes(most) == sizes
    assert [bucket_of([decode(row) for row in range(size)], sizes) for size in sizes] == list(sizes)
    assert bucket_of([decode(row) for row in range(most + 1)], sizes) is None


def test_256_rows_have_twenty_sizes() -> None:
    sizes = bucket_sizes(256)
    assert len(sizes) == 20 and max(after - before for before, after in pairwise(sizes)) == 16


def test_chunks_of_several_tokens_fit_none() -> None:
    assert bucket_of([decode(0), decode(1, length=2)], (1, 2, 4)) is None
    assert bucket_of([], (1, 2, 4)) is None
    assert bucket_of([decode(0)], ()) is None


def test_what_is_missing_is_padding_at_position_0() -> None:
    chunks = [decode(3), decode(5), decode(1)]
    bucket = bucket_of(chunks, (1, 2, 4))
    filled = filled_up(chunks, bucket, 8)
    assert filled[:3] == chunks and len(filled) == 4
    assert (filled[3].row, filled[3].start, filled[3].length, filled[3].sample) == (8, 0, 1, 0)
    assert filled_up(chunks, None, 8) is chunks
