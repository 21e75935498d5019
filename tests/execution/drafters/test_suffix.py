"""The suffix drafter: from which texts it drafts for whom, and what they take."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inflight.compiled import module
from inflight.core.speculation.speculation import NOTHING, Proposal
from inflight.execution.drafters import suffix, suffix_reference
from inflight.execution.drafters.suffix import IndexKind, SuffixDrafter
from inflight.execution.drafters.suffix_reference import ReferenceIndex

NATIVE: IndexKind = module().SuffixIndex


class CompactReference(ReferenceIndex):
    """The reference, as if it took no more memory than the compiled index, so that it forgets when that does."""

    bytes_alone = NATIVE.bytes_alone
    bytes_per_token = NATIVE.bytes_per_token


KINDS = [pytest.param(CompactReference, id="reference"), pytest.param(NATIVE, id="native")]
AGAINST_MEMORY = 8 << 20


@dataclass
class Text:
    """A drafter's view of a sequence."""

    number: int
    prompt: Sequence[int]
    output: list[int] = field(default_factory=list)
    salt: str = ""
    asked: int = 0  # tokens that were read

    @property
    def prompt_tokens(self) -> int:
        return len(self.prompt)

    @property
    def output_tokens(self) -> int:
        return len(self.output)

    def token_slice(self, start: int, end: int) -> tuple[int, ...]:
        self.asked += end - start
        return (*self.prompt, *self.output)[start:end]


def drafter_of(kind: IndexKind, tokens: int = 100_000, indexes: int = 50) -> SuffixDrafter:
    """With memory for so much."""
    return SuffixDrafter(tokens * kind.bytes_per_token + indexes * kind.bytes_alone, kind)


def drafts(drafter: SuffixDrafter, text: Any, most: int = 4) -> tuple[int, ...]:
    return drafter.propose(text, most).token_ids


@pytest.mark.parametrize("kind", KINDS)
class TestTexts:
    def test_drafts_from_its_own_tokens(self, kind: IndexKind) -> None:
        drafter, text = drafter_of(kind), Text(1, [1, 2, 3, 4, 5, 6, 2, 3])
        assert drafts(drafter, text) == (4, 5, 6, 2)
        text.output += [7, 8, 9, 8]
        assert drafts(drafter, text) == (9, 8, 9)
        text.output += [4, 5]
        assert drafts(drafter, text, 1) == (6,)
        assert text.asked == 14  # each once

    def test_drafts_from_answers_of_its_salt_alone(self, kind: IndexKind) -> None:
        drafter = drafter_of(kind)
        for salt, word in (("a", 7), ("b", 8)):
            drafter.finished(Text(1, [1], [5, 6, word], salt))  # type: ignore[arg-type]
        assert [drafts(drafter, Text(n, [9, 5, 6], [], salt)) for n, salt in enumerate("abc", 2)] == [(7,), (8,), ()]
        assert drafts(drafter, Text(5, [9, 5, 6])) == ()

    def test_a_running_sequence_drafts_for_no_other(self, kind: IndexKind) -> None:
        drafter = drafter_of(kind)
        assert drafts(drafter, Text(1, [5, 6, 7, 5, 6])) and not drafts(drafter, Text(2, [5, 6]))

    def test_the_same_question_has_the_same_answer_from_its_first_token_on(self, kind: IndexKind) -> None:
        drafter, question = drafter_of(kind), list(range(100, 140))
        drafter.finished(Text(1, question, [*range(50)]))  # type: ignore[arg-type]
        assert drafts(drafter, Text(2, question), 10) == tuple(range(10))
        assert drafts(drafter, Text(3, [100, 101, 102])) == ()  # prompts themselves are not kept

    def test_nothing_is_kept_of_who_had_no_output(self, kind: IndexKind) -> None:
        drafter, text = drafter_of(kind), Text(1, [1, 2, 3, 1, 2])
        assert drafts(drafter, text)
        drafter.finished(text)  # type: ignore[arg-type]
        assert drafter.nbytes == 0 and drafts(drafter, Text(2, [1, 2])) == ()

    def test_an_ended_sequence_leaves_its_answer_alone(self, kind: IndexKind) -> None:
        drafter, text = drafter_of(kind), Text(1, [1, 2, 3] * 100, [5, 6, 7])
        drafts(drafter, text)
        drafter.finished(text)  # type: ignore[arg-type]
        kept = suffix.PROMPT_END + 3
        assert drafter.nbytes == kept * kind.bytes_per_token
        asking: Any = Text(2, [9])
        drafts(drafter, asking)
        drafter.finished(asking)
        assert drafter.nbytes == kind.bytes_alone + kept * kind.bytes_per_token

    def test_answers_are_learned_when_drafts_are_asked_for_a_few_in_each_call(
        self, kind: IndexKind, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(suffix, "LEARNED_PER_QUESTION", 8)
        drafter, ended = drafter_of(kind), [Text(n, [50 + n], [10 * n, 10 * n + 1, 10 * n + 2]) for n in range(5)]
        for text in ended:
            drafter.finished(text)  # type: ignore[arg-type]
        known = []
        for _ in range(3):
            drafts(drafter, Text(9, [99]))
            known.append(len(drafter._answers))
        assert known == [2, 4, 5]
        assert all(drafts(drafter, Text(20 + n, [50 + n])) == tuple(text.output) for n, text in enumerate(ended))

    def test_the_newest_of_many_unlearned_answers_wait(self, kind: IndexKind, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(suffix, "MAX_UNLEARNED", 9)
        drafter = drafter_of(kind)
        for number in range(5):
            drafter.finished(Text(number, [50 + number], [10 * number, 10 * number + 1]))  # type: ignore[arg-type]
        assert drafter.nbytes == 9 * kind.bytes_per_token
        known = [drafts(drafter, Text(9 + n, [10 * n])) for n in range(5)]
        assert known == [(), (), (21,), (31,), (41,)]

    def test_a_long_prompt_is_read_over_several_calls(self, kind: IndexKind, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(suffix, "MAX_READ", 5)
        drafter, text = drafter_of(kind), Text(1, [1, 2, 3, 4] * 3)
        assert [drafts(drafter, text, 2) for _ in range(3)] == [(), (), (1, 2)] and text.asked == 12
        text.output += [1, 2, 9, 9, 9, 9, 1]
        assert [drafts(drafter, text, 1) for _ in range(2)] == [(), (2,)]

    def test_a_long_answer_is_kept_as_far_as_can_be_learned_at_once(
        self, kind: IndexKind, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(suffix, "LONGEST_ANSWER", 5)
        drafter = drafter_of(kind)
        drafter.finished(Text(1, [1], list(range(10, 30))))  # type: ignore[arg-type]
        assert drafts(drafter, Text(2, [12]), 8) == (13, 14) and drafts(drafter, Text(3, [20])) == ()


@pytest.mark.parametrize("kind", KINDS)
class TestMemory:
    def test_the_oldest_answers_are_forgotten_first(self, kind: IndexKind) -> None:
        drafter, known = drafter_of(kind, tokens=45, indexes=2), []
        for number in range(6):
            drafter.finished(Text(number, [99], [*range(10 * number, 10 * number + 10)]))  # type: ignore[arg-type]
        for number in range(6):
            text: Any = Text(9, [10 * number])
            known.append(bool(drafts(drafter, text, 1)))
            drafter.finished(text)
        assert known == [False, False, True, True, True, True]

    def test_running_sequences_come_before_answers_and_have_no_more_than_there_is(self, kind: IndexKind) -> None:
        drafter = drafter_of(kind, tokens=100, indexes=2)
        drafter.finished(Text(1, [1], list(range(50))))  # type: ignore[arg-type]
        assert drafts(drafter, Text(2, [*range(100, 140), 100])) == (101, 102, 103)
        assert drafts(drafter, Text(3, [10])) == ()  # the answer is gone: there was no memory for a third index
        long = Text(4, [200, *range(200, 280), 200])
        assert drafter.propose(long, 4) is NOTHING and long.asked == 0  # type: ignore[arg-type]
        drafter.finished(Text(2, [*range(100, 140), 100]))  # type: ignore[arg-type]
        drafter.finished(Text(3, [10]))  # type: ignore[arg-type]
        assert drafts(drafter, long) == (201, 202)

    def test_thousands_of_salts_take_no_more(self, kind: IndexKind) -> None:
        drafter = drafter_of(kind, tokens=10_000, indexes=100)
        for number in range(3_000):
            drafter.finished(Text(number, [1], [2, 3, number], f"salt {number}"))  # type: ignore[arg-type]
            assert drafter.nbytes <= drafter._max_bytes
        while drafter._waiting:
            drafts(drafter, Text(2_999, [1]))
            assert drafter.nbytes <= drafter._max_bytes
        assert drafts(drafter, Text(3_000, [2, 3], [], "salt 2999")) == (2999,)
        assert drafts(drafter, Text(3_001, [2, 3], [], "salt 0")) == ()


def test_a_worn_out_index_makes_place_for_another(monkeypatch: pytest.MonkeyPatch) -> None:
    """After twenty positions instead of six hundred million."""
    monkeypatch.setattr(suffix_reference, "MAX_POSITIONS", 20)
    drafter = drafter_of(CompactReference, tokens=30, indexes=3)
    for number in range(6):
        answer = [*range(10 * number, 10 * number + 6)]
        drafter.finished(Text(number, [9], answer))  # type: ignore[arg-type]
        assert drafts(drafter, Text(10 + number, [answer[2]]), 1) == (answer[3],)
        drafter.finished(Text(10 + number, [answer[2]]))  # type: ignore[arg-type]
        assert drafter.nbytes <= drafter._max_bytes


def held_bytes(drafter: SuffixDrafter) -> int:
    indexes = {id(one): one.index for one in drafter._answers._order}
    return sum(index.nbytes for index in (*drafter._read.values(), *indexes.values()))


STEP = st.tuples(
    st.integers(0, 4),  # which sequence
    st.lists(st.integers(0, 2), max_size=30),  # what it has more of
    st.booleans(),  # whether it ends then
    st.sampled_from(["", "a"]),  # the salt of who comes next
)


@given(st.lists(STEP, max_size=40), st.integers(0, 300))
def test_both_kinds_draft_the_same(steps: list[tuple[int, list[int], bool, str]], tokens: int) -> None:
    """With sequences that come and go, salts, and memory that runs out; which is never more than there is."""
    drafters = [drafter_of(kind, tokens, indexes=4) for kind in (CompactReference, NATIVE)]
    numbers, running = iter(range(1_000)), {}
    for which, token_ids, ends, salt in steps:
        text: Any = running.setdefault(which, Text(next(numbers), [0, 1], [], salt))
        text.output += token_ids
        reference, native = (drafter.propose(text, 6) for drafter in drafters)
        assert reference == native and isinstance(native, Proposal)
        if ends:
            for drafter in drafters:
                drafter.finished(running.get(which))  # type: ignore[arg-type]
            del running[which]
        assert drafters[0].nbytes == drafters[1].nbytes <= drafters[1]._max_bytes
        assert held_bytes(drafters[1]) <= drafters[1].nbytes


def test_the_largest_index_stays_within_the_limit() -> None:
    """Degenerate repetition, long prompts, many rows and salts: what is counted is at least what is there."""
    drawn, drafter = random.Random(5), SuffixDrafter(AGAINST_MEMORY)
    for number in range(60):
        prompt: Sequence[int] = [
            [7] * 20_000,
            range(20_000),
            drawn.choices(range(150_000), k=20_000),
            [number, 2] * 5_000,
        ][number % 4]
        text: Any = Text(number, tuple(prompt), [5, 6] * drawn.randrange(3_000), str(number % 7))
        for _ in range(8):
            drafter.propose(text, 16)
        assert held_bytes(drafter) <= drafter.nbytes <= AGAINST_MEMORY
        if number % 3:
            drafter.finished(text)
    assert held_bytes(drafter) > AGAINST_MEMORY / 3
