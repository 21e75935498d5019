"""The index of suffix drafting: what its reference in Python drafts, and that the compiled one drafts the same."""

from __future__ import annotations

import random
from collections.abc import Sequence
from math import prod
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inflight.compiled import module
from inflight.execution.drafters.suffix import IndexKind, SuffixIndex, best_kind
from inflight.execution.drafters.suffix_reference import (
    DEPTH,
    LEVELS,
    MAX_MATCHES,
    MIN_CHANCE,
    ReferenceIndex,
    chance_of,
)

KINDS = [pytest.param(ReferenceIndex, id="reference"), pytest.param(module().SuffixIndex, id="native")]


def index_of(kind: IndexKind, *texts: Sequence[int]) -> SuffixIndex:
    """The last one still grows."""
    index = kind()
    for text in texts:
        index.end_text()
        index.append(text)
    return index


# -- what is drafted --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
class TestDrafts:
    def test_what_followed_the_last_tokens_before(self, kind: IndexKind) -> None:
        index = index_of(kind, [9, 1, 2, 3, 4, 5, 6, 7, 8, 1, 2, 3])
        token_ids, chances = index.propose(None, 4)
        assert token_ids == (4, 5, 6, 7)
        assert chances == tuple(chance_of(1, 1, alike) for alike in (3, 4, 5, 6))

    def test_nothing_of_tokens_that_are_new(self, kind: IndexKind) -> None:
        assert index_of(kind, [1, 2, 3]).propose(None, 4) == index_of(kind).propose(None, 4) == ((), ())
        assert index_of(kind, [1, 2, 1]).propose(None, 0) == ((), ())

    def test_the_longest_match_decides(self, kind: IndexKind) -> None:
        """8 stood behind 2 three times, but behind 1 2 only 7 did."""
        assert index_of(kind, [1, 2, 7, 3, 2, 8, 4, 2, 8, 5, 2, 8, 1, 2]).propose(None, 1)[0] == (7,)

    def test_the_majority_of_equal_matches_decides(self, kind: IndexKind) -> None:
        index = index_of(kind, [1, 2, 7, 0, 1, 2, 8, 0, 1, 2, 7, 9, 1, 2])
        assert index.propose(None, 1) == ((7,), (chance_of(2, 3, 2),))

    def test_the_newest_of_equally_many_decides(self, kind: IndexKind) -> None:
        index = index_of(kind, [1, 7, 1, 8, 1])
        assert index.propose(None, 1) == ((8,), (chance_of(1, 2, 1),))

    def test_those_that_agree_go_on(self, kind: IndexKind) -> None:
        """Twice 7 and then 5, once 8 and then 6: behind 7 only the two are asked."""
        index = index_of(kind, [1, 2, 7, 5, 0, 1, 2, 8, 6, 3, 1, 2, 7, 5, 4, 1, 2])
        token_ids, chances = index.propose(None, 2)
        assert token_ids == (7, 5) and chances == (chance_of(2, 3, 2), chance_of(2, 2, 3))

    def test_repetition_goes_on_beyond_the_end(self, kind: IndexKind) -> None:
        token_ids, chances = index_of(kind, [5, 6] * 40).propose(None, 7)
        assert token_ids == (5, 6, 5, 6, 5, 6, 5) and set(chances) == {chance_of(MAX_MATCHES, MAX_MATCHES, DEPTH)}

    def test_drafts_end_where_all_of_them_are_hardly_right(self, kind: IndexKind) -> None:
        index = index_of(kind, [1, *range(10, 40), 1])
        token_ids, chances = index.propose(None, 30)
        assert token_ids == (10, 11, 12)[: len(token_ids)] and prod(chances) >= MIN_CHANCE
        assert prod(chances) * chance_of(1, 1, len(token_ids) + 1) < MIN_CHANCE

    def test_the_newest_places_alone_are_looked_at(self, kind: IndexKind) -> None:
        """8 is by far the most frequent behind 1, but not among them."""
        newest = MAX_MATCHES // 2 + 1
        index = index_of(kind, [*[1, 8] * 40, *[1, 7] * newest, 3, 1])
        assert index.propose(None, 1) == ((7,), (chance_of(newest, MAX_MATCHES, 1),))

    def test_other_texts_are_no_context_and_not_drafted_from_beyond_their_end(self, kind: IndexKind) -> None:
        index = index_of(kind, [1, 2, 3], [4, 5, 6], [7, 3])
        assert index.propose(None, 4) == ((), ())
        assert index_of(kind, [1, 2, 3], [4, 5, 2]).propose(None, 4)[0] == (3,)

    def test_another_index_drafts_too(self, kind: IndexKind) -> None:
        others = index_of(kind, [0, 1, 2, 3, 4], [5, 6])
        others.end_text()
        own = index_of(kind, [9, 3, 8, 1, 2, 3])
        assert own.propose(others, 4)[0] == (4,)  # 1 2 3 there is longer than 3 here
        assert own.propose(None, 1)[0] == (8,)

    def test_own_places_and_those_of_others_are_counted_together(self, kind: IndexKind) -> None:
        others = index_of(kind, [1, 2, 7], [1, 2, 7], [1, 2, 8])
        own = index_of(kind, [1, 2, 8, 5, 1, 2, 8, 6, 1, 2])
        assert own.propose(others, 1) == ((8,), (chance_of(3, 5, 2),))

    def test_what_was_dropped_drafts_no_more(self, kind: IndexKind) -> None:
        index = index_of(kind, [1, 2, 3], [1, 2, 4], [1, 2])
        assert index.propose(None, 1) == ((4,), (chance_of(1, 2, 2),))
        assert index.drop_text() == 3 and len(index) == 5
        assert index.propose(None, 1) == ((4,), (chance_of(1, 1, 2),))
        assert index.drop_text() == 3 and index.propose(None, 1) == ((), ())
        assert index.drop_text() == 2 and index.drop_text() == 0 and len(index) == 0
        index.append([6, 6])
        assert index.propose(None, 1)[0] == (6,)


def test_chances_grow_with_the_length_and_fall_with_disagreement() -> None:
    assert [round(chance_of(1, 1, alike), 2) for alike in (1, 3, 9, 32)] == [0.25, 0.5, 0.75, 0.91]
    assert chance_of(2, 2, 3) > chance_of(1, 1, 3) > chance_of(2, 4, 3) > chance_of(1, 4, 3) > 0


def searched(texts: list[list[int]], others: list[list[int]], most: int) -> tuple[tuple[int, ...], tuple[float, ...]]:
    """Return the drafts of an index of these texts, found by looking at every place."""
    tail, drafts, chances = texts[-1], list[int](), list[float]()

    def newest(of: list[list[int]]) -> list[tuple[int, list[int], int]]:
        """(tokens that are alike, text, where they end)."""
        for level in (one for one in reversed(LEVELS) if one <= len(tail)):
            ends = [(text, end) for text in of for end in range(level, len(text) + (text is not tail))]
            if found := [(text, end) for text, end in reversed(ends) if text[end - level : end] == tail[-level:]]:
                return [(alike(text, end), text, end) for text, end in found[:MAX_MATCHES]]
        return []

    def alike(text: list[int], end: int) -> int:
        most = min(end, len(tail), DEPTH)
        return max(tokens for tokens in range(most + 1) if text[end - tokens : end] == tail[len(tail) - tokens :])

    places = newest(texts) + newest(others)
    longest = max((tokens for tokens, _, _ in places), default=0)
    places = [one for one in places if one[0] == longest]
    while len(drafts) < most:
        goes_on = [(text + drafts if text is tail else text)[end + len(drafts) :][:1] for _, text, end in places]
        follows = [one[0] for one in goes_on if one]
        if not follows:
            break
        best = max(follows, key=follows.count)
        chances.append(chance_of(follows.count(best), len(follows), min(DEPTH, longest + len(drafts))))
        if prod(chances) < MIN_CHANCE:
            return tuple(drafts), tuple(chances[:-1])
        drafts.append(best)
        places = [one for one, after in zip(places, goes_on, strict=True) if after == [best]]
    return tuple(drafts), tuple(chances)


SHORT = st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=60), min_size=1, max_size=4)


@given(SHORT, SHORT, st.integers(0, 2), st.integers(0, 9))
def test_it_finds_what_a_search_finds(own: list[list[int]], others: list[list[int]], dropped: int, most: int) -> None:
    dropped = min(dropped, len(own) - 1, len(others) - 1)
    indexes = [index_of(ReferenceIndex, *texts) for texts in (own, others)]
    for index in indexes:
        for _ in range(dropped):
            index.drop_text()
    assert indexes[0].propose(indexes[1], most) == searched(own[dropped:], others[dropped:], most)


# -- the compiled one -------------------------------------------------------------------------------------------------


class Pairs:
    """Compiled indexes and their references, with the same operations."""

    def __init__(self, count: int) -> None:
        self.native = [module().SuffixIndex() for _ in range(count)]
        self.references = [ReferenceIndex() for _ in range(count)]

    def do(self, which: int, name: str, *arguments: Any) -> Any:
        native, reference = (getattr(kind[which], name)(*arguments) for kind in (self.native, self.references))
        assert native == reference
        assert len(self.native[which]) == len(self.references[which])
        assert self.native[which].room == self.references[which].room
        return native

    def propose(self, which: int, others: int | None, most: int) -> tuple[int, ...]:
        asked = [kind[which].propose(kind[others] if others is not None else None, most) for kind in self.all]
        assert asked[0] == asked[1]
        token_ids: tuple[int, ...] = asked[0][0]
        return token_ids

    @property
    def all(self) -> tuple[list[Any], list[ReferenceIndex]]:
        return self.native, self.references


TEXT = st.one_of(
    *(st.lists(st.integers(0, size), max_size=40) for size in (1, 2, 5, 2**31 - 1)),
    st.builds(
        lambda unit, times: unit * times, st.lists(st.integers(0, 3), min_size=1, max_size=9), st.integers(1, 40)
    ),
)
INDEXES = 3
STEP = st.one_of(
    st.tuples(st.just("append"), st.integers(0, INDEXES - 1), TEXT),
    st.tuples(st.just("end_text"), st.integers(0, INDEXES - 1)),
    st.tuples(st.just("drop_text"), st.integers(0, INDEXES - 1)),
)


@given(st.lists(STEP, max_size=30), st.integers(1, 40))
def test_it_drafts_as_its_reference(steps: list[tuple[Any, ...]], most: int) -> None:
    pairs = Pairs(INDEXES)
    for name, which, *arguments in steps:
        pairs.do(which, name, *arguments)
        for others in (None, *(other for other in range(INDEXES) if other != which)):
            pairs.propose(which, others, most)


@pytest.mark.parametrize("alphabet", [1, 2, 3, 30, 5000])
def test_it_drafts_as_its_reference_over_long_texts(alphabet: int) -> None:
    """Across pages and many buckets that come and go, in step and by bursts."""
    drawn, pairs, drafted = random.Random(alphabet), Pairs(2), 0
    for turn in range(400):
        pairs.do(1, "append", drawn.choices(range(alphabet), k=drawn.randrange(200)))
        pairs.do(1, "end_text")
        if turn % 100 > 50:
            pairs.do(1, "drop_text")
            pairs.do(1, "drop_text")
        known = [drawn.randrange(alphabet) for _ in range(drawn.randrange(12))]
        pairs.do(0, "append", known)
        drafted += len(pairs.propose(0, 1, 12))
    while len(pairs.native[1]):
        pairs.do(1, "drop_text")
        drafted += len(pairs.propose(0, 1, 12))
    assert drafted > 100


def texts_of(drawn: random.Random) -> list[list[int]]:
    return [
        [0] * 5000,
        [1, 2] * 1500,
        list(range(5000)),
        drawn.choices(range(3), k=5000),
        drawn.choices(range(10**6), k=5000),
        *([number] for number in range(100)),
    ]


def test_memory_is_counted_and_bounded() -> None:
    index = module().SuffixIndex()
    empty, drawn = index.nbytes, random.Random(3)
    for _ in range(3):
        texts = texts_of(drawn)
        for text in texts:
            index.append(text)
            index.end_text()
            assert index.nbytes <= index.bytes_alone + index.bytes_per_token * len(index)
        assert index.nbytes > 28 * len(index)
        for text in texts:
            assert index.drop_text() == len(text)
            assert index.nbytes <= index.bytes_alone + index.bytes_per_token * len(index)
    assert len(index) == 0 and index.nbytes < empty + index.bytes_alone


@pytest.mark.parametrize("wrong", [5, "text", {1, 2}, [1, -1], [2**31], [1.0], [None], [True], [2**70]])
def test_what_is_no_token_changes_nothing(wrong: Any) -> None:
    index = index_of(module().SuffixIndex, [1, 2, 3, 1])
    with pytest.raises((ValueError, TypeError), match="token"):
        index.append(wrong)
    assert len(index) == 4 and index.propose(None, 1)[0] == (2,)


def test_it_drafts_from_no_other_kind_and_not_twice_from_itself() -> None:
    index: Any = index_of(module().SuffixIndex, [1, 2, 1])
    with pytest.raises(ValueError, match="its own others"):
        index.propose(index, 4)
    with pytest.raises(TypeError):
        index.propose(ReferenceIndex(), 4)


def test_the_compiled_one_is_taken_where_there_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    assert best_kind() is module().SuffixIndex

    def missing() -> Any:
        raise ImportError("not built")

    monkeypatch.setattr("inflight.execution.drafters.suffix.module", missing)
    assert best_kind() is ReferenceIndex
