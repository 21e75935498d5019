"""What questions take: all that the drafter has not read, and the account has to hold it."""

from __future__ import annotations

import pytest

from core.builders import sequence
from inflight.core.sequence import SequenceView
from inflight.core.speculation.drafter import LEARNED_PER_QUESTION, LONGEST_ANSWER, MOST_UNLEARNED
from inflight.core.speculation.questions import ASKING, DEARER, READING, Questions
from inflight.core.speculation.time_budget import SHARE, TimeBudget


def view(number: int, prompt: int, output: int = 0) -> SequenceView:
    one = sequence(number, range(prompt), max_tokens=output + 10)
    one.output += [0] * output
    return SequenceView(one)


def emptied() -> TimeBudget:
    budget = TimeBudget()
    budget.passed(0.001)
    budget.settle(0.0, budget.seconds)
    return budget


def filled(budget: TimeBudget, seconds: float) -> None:
    """So much comes to the account."""
    budget.passed(seconds / SHARE)


def test_the_first_question_reads_the_sequence_and_the_next_only_what_came_since() -> None:
    questions, asked = Questions(TimeBudget(), reads=True), view(0, prompt=200, output=50)
    questions.began(asked)
    assert questions.price(asked) == pytest.approx(ASKING + 250 * READING)
    assert questions.pay(asked) == pytest.approx(ASKING + 250 * READING)
    assert questions.price(asked) == ASKING
    questions.ended(view(1, prompt=10, output=30))  # its answer is learned first
    assert questions.price(asked) == pytest.approx(ASKING + 30 * READING)


def test_of_many_answers_that_have_ended_a_question_reads_so_many_tokens_and_the_next_goes_on() -> None:
    questions, asked = Questions(TimeBudget(), reads=True), view(0, prompt=0)
    questions.began(asked)
    questions.ended(view(1, prompt=10, output=LEARNED_PER_QUESTION + 100))
    assert questions.pay(asked) == pytest.approx(ASKING + LEARNED_PER_QUESTION * READING)
    assert questions.pay(asked) == pytest.approx(ASKING + 100 * READING)
    assert questions.pay(asked) == ASKING


def test_what_no_drafter_learns_any_more_is_not_paid_for() -> None:
    """However many have ended while nobody was asked, and however long they were."""
    questions, asked = Questions(TimeBudget(), reads=True), view(0, prompt=0)
    questions.began(asked)
    questions.ended(view(1, prompt=10, output=2 * LONGEST_ANSWER))
    for _ in range(LONGEST_ANSWER // LEARNED_PER_QUESTION):
        assert questions.price(asked) > ASKING
        questions.pay(asked)
    assert questions.price(asked) == ASKING
    for number in range(100):
        questions.ended(view(1 + number, prompt=10, output=LONGEST_ANSWER))
    for _ in range(MOST_UNLEARNED // LEARNED_PER_QUESTION):
        questions.began(asked)
        assert questions.price(asked) > ASKING
        questions._unseen -= LEARNED_PER_QUESTION
    assert questions.price(asked) == ASKING


def test_what_is_kept_for_drafts_is_not_spent_on_a_question() -> None:
    budget = emptied()
    questions, asked = Questions(budget, reads=True), view(0, prompt=100)
    questions.began(asked)
    price = questions.price(asked)
    filled(budget, 2.5 * price)
    assert questions.pay(asked, beside=2 * price) is None and budget.seconds == pytest.approx(2.5 * price)
    assert questions.pay(asked, beside=price) == price


def test_a_drafter_that_reads_nothing_is_always_as_dear() -> None:
    questions = Questions(TimeBudget(), reads=False)
    questions.ended(view(1, prompt=10, output=3000))
    assert questions.price(view(0, prompt=20_000)) == ASKING


def test_who_is_too_dear_waits_until_the_account_holds_more_and_is_not_looked_for_before() -> None:
    budget = emptied()
    questions, long = Questions(budget, reads=True), view(0, prompt=2000)
    questions.began(long)
    price = questions.price(long)
    filled(budget, price / 2)
    assert questions.may_be_any(0.0)  # it is not known yet how dear it is
    assert questions.pay(long) is None
    assert not questions.affords_any([0], 0.0)
    assert not questions.may_be_any(0.0)
    filled(budget, price * (DEARER - 0.5))
    assert questions.may_be_any(0.0) and questions.affords_any([0], 0.0) and questions.pay(long)


def test_a_cheaper_newcomer_is_not_made_to_wait_for_them() -> None:
    budget = emptied()
    questions = Questions(budget, reads=True)
    questions.began(view(0, prompt=2000))
    filled(budget, 100e-6)
    assert not questions.affords_any([0], 0.0) and not questions.may_be_any(0.0)
    questions.began(view(1, prompt=20))
    assert questions.may_be_any(0.0) and questions.affords_any([0, 1], 0.0)


def test_what_is_dearer_than_the_account_ever_holds_may_be_asked_when_it_is_full() -> None:
    budget = TimeBudget()
    questions, endless = Questions(budget, reads=True), view(0, prompt=1_000_000)
    questions.began(endless)
    assert questions.price(endless) > budget.reserve and questions.pay(endless) == questions.price(view(1, 1_000_000))
