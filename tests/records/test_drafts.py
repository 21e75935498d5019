"""What steps of a record tell of drafts: counted by chunk, by place, by how many were right."""

from __future__ import annotations

from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given

from inflight.records.drafts import DraftCounts, Position, Verified, rejected, verified


def step(*chunks: dict[str, Any], accepted: list[list[int]] | None = None) -> Any:
    told = {} if accepted is None else {"accepted": accepted}
    return {"kind": "step", "chunks": [{"row": 0, "start": 9, "new_blocks": [], **chunk} for chunk in chunks], **told}


THREE = step(
    {"sequence": 4, "length": 4, "draft_token_ids": [7, 8, 9]},
    {"sequence": 5, "length": 1},
    {"sequence": 6, "length": 3, "num_drafts": 2},
    accepted=[[4, 1], [6, 2]],
)


def test_drafts_of_both_kinds_are_told_by_sequence() -> None:
    assert list(verified(THREE)) == [Verified(4, 3, 1), Verified(6, 2, 2)]
    assert rejected(THREE) == {4: 2, 6: 0}


def test_a_record_that_does_not_say_what_was_right_has_no_drafts_to_show() -> None:
    old = step({"sequence": 4, "length": 4, "draft_token_ids": [7, 8, 9]})
    assert list(verified(old)) == [] and rejected(old) == {}
    assert DraftCounts.of([old]).chunks == 0


def test_positions_tell_who_came_so_far() -> None:
    counts = DraftCounts.of([THREE, THREE, step({"sequence": 1, "length": 2, "num_drafts": 1}, accepted=[[1, 0]])])
    assert (counts.chunks, counts.tokens, counts.accepted_tokens) == (5, 11, 6)
    assert counts.accepted_lengths() == {0: 1, 1: 2, 2: 2}
    assert counts.positions() == [Position(5, 5, 4), Position(4, 4, 2), Position(2, 0, 0)]


@given(st.lists(st.tuples(st.integers(1, 9), st.integers(0, 9)).map(lambda pair: (pair[0], min(pair)))))
def test_sums_by_place_are_the_sums(chunks: list[tuple[int, int]]) -> None:
    counts = DraftCounts()
    for drafts, accepted in chunks:
        counts.add(Verified(0, drafts, accepted))
    places = counts.positions()
    assert sum(one.drafted for one in places) == counts.tokens == sum(drafts for drafts, _ in chunks)
    assert sum(one.accepted for one in places) == counts.accepted_tokens == sum(right for _, right in chunks)
    assert all(one.drafted >= one.reached >= one.accepted for one in places)
    assert sum(counts.accepted_lengths().values()) == counts.chunks == len(chunks)


@pytest.mark.parametrize("drafts", [0, 1])
def test_nothing_is_counted_of_nothing(drafts: int) -> None:
    assert DraftCounts.of([step({"sequence": 1, "length": 1}, accepted=[])] * drafts).positions() == []
