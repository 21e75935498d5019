"""Passes: a step is cut where the decoder's memory ends, and nothing of it is lost."""

from __future__ import annotations

import hypothesis.strategies as st
from hypothesis import given

from inflight.core.types.plan import Chunk
from inflight.execution.passes import passes


def test_blocks_come_with_the_first_piece_and_sampling_with_the_last() -> None:
    parts = list(passes([Chunk(0, 0, 4, 3, (1,), True), Chunk(1, 1, 8, 7, (2, 3), True)], 4))
    assert parts == [
        [Chunk(0, 0, 4, 3, (1,), True), Chunk(1, 1, 8, 1, (2, 3), False)],
        [Chunk(1, 1, 9, 4, (), False)],
        [Chunk(1, 1, 13, 2, (), True)],
    ]


def test_what_fits_is_one_pass() -> None:
    chunks = [Chunk(0, 0, 0, 3, (), True), Chunk(1, 1, 0, 5, (), False)]
    assert list(passes(chunks, 8)) == [chunks]
    assert list(passes([], 8)) == []


def test_scored_positions_go_with_their_pieces() -> None:
    (one,) = [list(passes([Chunk(0, 0, 4, 10, (), True, score=range(6, 13))], 4))]
    assert [[list(piece.score) for piece in part] for part in one] == [[[6, 7]], [[8, 9, 10, 11]], [[12]]]


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(1, 30), st.booleans()), max_size=8), st.integers(1, 12))
def test_every_token_is_computed_once_and_in_order(given: list[tuple[int, int, bool]], limit: int) -> None:
    chunks = [Chunk(n, n, start, length, (n,), sample) for n, (start, length, sample) in enumerate(given)]
    parts = list(passes(chunks, limit))
    assert all(0 < sum(piece.length for piece in part) <= limit for part in parts)
    for chunk in chunks:
        pieces = [piece for part in parts for piece in part if piece.row == chunk.row]
        assert [p for piece in pieces for p in range(piece.start, piece.start + piece.length)] == list(
            range(chunk.start, chunk.start + chunk.length)
        )
        assert [piece.new_blocks for piece in pieces] == [(chunk.row,)] + [()] * (len(pieces) - 1)
        assert [piece.sample for piece in pieces] == [False] * (len(pieces) - 1) + [chunk.sample]
