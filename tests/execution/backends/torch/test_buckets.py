"""Sizes of passes that graphs are captured for, and how chunks are filled up to one."""

from __future__ import annotations

from itertools import pairwise

import pytest

from inflight.core.types.plan import Chunk
from inflight.execution.backends.torch.buckets import Bucket, Buckets, filled_up, row_sizes, token_sizes


def decode(row: int, length: int = 1) -> Chunk:
    return Chunk(row, row, 7, length, (), 1)


@pytest.mark.parametrize(
    ("most", "sizes"),
    [(1, (1,)), (4, (1, 2, 4)), (10, (1, 2, 4, 8, 10)), (16, (1, 2, 4, 8, 16)), (40, (1, 2, 4, 8, 16, 32, 40))],
)
def test_sizes_rise_to_the_largest(most: int, sizes: tuple[int, ...]) -> None:
    assert row_sizes(most) == token_sizes(most) == sizes
    buckets = Buckets(sizes)
    assert [buckets.of([decode(row) for row in range(size)]) for size in sizes] == [Bucket(one, True) for one in sizes]
    assert buckets.of([decode(row) for row in range(most + 1)]) is None


def test_256_rows_have_twenty_sizes() -> None:
    sizes = row_sizes(256)
    assert len(sizes) == 20 and max(after - before for before, after in pairwise(sizes)) == 16


def test_beyond_256_tokens_sizes_have_larger_steps() -> None:
    assert token_sizes(512) == (*row_sizes(256), 320, 384, 448, 512)
    assert token_sizes(330) == (*row_sizes(256), 320, 330) and token_sizes(256) == row_sizes(256)


def test_chunks_of_several_tokens_fit_where_they_may() -> None:
    one_each, mixed = [decode(0), decode(1)], [decode(0), decode(1, length=2)]
    assert Buckets((1, 2, 4)).of(mixed) is None
    assert Buckets((1, 2), (2, 4)).of(mixed) == Bucket(4, False)
    assert Buckets((1, 2), (2, 4)).of(one_each) == Bucket(2, True)
    assert Buckets((1, 2), (2, 4)).of([decode(row) for row in range(3)]) is None
    assert Buckets((), (1, 2, 4)).of(mixed) == Bucket(4, False)
    assert Buckets((), (1, 2, 4)).of(one_each) == Bucket(2, False), "what is launched is the same"
    assert Buckets((1, 2), (2, 4)).of([decode(0, length=5)]) is None
    assert Buckets((1, 2), (2, 4)).of([]) is None and Buckets((), (2, 4)).of([]) is None
    assert Buckets().of([decode(0)]) is None


def test_no_chunk_is_longer_than_its_bucket_says() -> None:
    assert (Bucket(8, True).longest_chunk, Bucket(8, False).longest_chunk) == (1, 8)


def test_there_is_a_pass_of_padding_for_each_size() -> None:
    buckets = Buckets((1, 3), (2, 5))
    assert buckets.padding() == [[2, 2, 1], [1, 1, 1], [1], [2]]
    found = [buckets.of([decode(row, length) for row, length in enumerate(chunks)]) for chunks in buckets.padding()]
    assert found == [Bucket(5, False), Bucket(3, True), Bucket(1, True), Bucket(2, False)]
    assert Buckets((), (1, 2, 4)).padding() == [[2, 2], [1], [2]] and not Buckets().padding()


def test_what_is_missing_is_padding_at_position_0() -> None:
    chunks = [decode(3), decode(5), decode(1)]
    filled = filled_up(chunks, Bucket(4, True), 8)
    assert filled[:3] == chunks and len(filled) == 4
    assert (filled[3].row, filled[3].start, filled[3].length, filled[3].sample) == (8, 0, 1, 0)
    assert filled_up(chunks, None, 8) is chunks


def test_there_are_as_many_chunks_as_tokens() -> None:
    chunks = [decode(3, length=4), decode(5, length=2)]
    filled = filled_up(chunks, Bucket(8, False), 9)
    assert [(one.row, one.length) for one in filled] == [(3, 4), (5, 2), (9, 1), (9, 1), *[(9, 0)] * 4]
    assert [(one.row, one.length) for one in filled_up(chunks[:1], Bucket(4, False), 9)] == [(3, 4), *[(9, 0)] * 3]
