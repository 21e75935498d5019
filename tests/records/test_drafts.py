"""Drafts in steps of a record: counted by chunk, by position, by how many were right."""

from __future__ import annotations

from typing import Any

import hypothesis.strategies as st
from hypothesis import given

from inflight.core.types.features import features
from inflight.core.types.plan import BatchPlan, Chunk
from inflight.records.drafts import DraftCounts, Position, Verified, rejected, verified
from inflight.records.schema import StepRecord


def chunk(sequence_id: int, length: int, **drafts: Any) -> Chunk:
    return Chunk(sequence_id, 0, 9, length, (), length, **drafts)


def step(*chunks: Chunk, accepted: tuple[tuple[int, int], ...] = ()) -> StepRecord:
    plan = BatchPlan(0, chunks)
    return StepRecord(plan, 0.0, 1.0, 1.0, features(plan), accepted=accepted)


THREE = step(
    chunk(4, 4, draft_token_ids=(7, 8, 9), num_drafts=3),
    chunk(5, 1),
    chunk(6, 3, num_drafts=2),
    accepted=((4, 1), (6, 2)),
)


def test_drafts_of_both_kinds_are_counted_by_sequence() -> None:
    assert list(verified(THREE)) == [Verified(4, 3, 1), Verified(6, 2, 2)]
    assert rejected(THREE) == {4: 2, 6: 0}


def test_a_record_that_does_not_say_what_was_right_has_no_drafts_to_show() -> None:
    old = step(chunk(4, 4, draft_token_ids=(7, 8, 9), num_drafts=3))
    assert list(verified(old)) == [] and rejected(old) == {}
    assert DraftCounts.of([old]).chunks == 0
    for steps in ([], [step(chunk(1, 1))]):
        assert DraftCounts.of(steps).positions() == []


def test_positions_count_drafts_behind_right_ones() -> None:
    counts = DraftCounts.of([THREE, THREE, step(chunk(1, 2, num_drafts=1), accepted=((1, 0),))])
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
