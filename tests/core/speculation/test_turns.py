"""Whose drafts are looked at, and after which pauses."""

from __future__ import annotations

import math
from itertools import pairwise

from inflight.core.speculation.turns import LONGEST, NEWCOMERS, SOON, Turns


def looked_at(turns: Turns, steps: int, most: int = LONGEST) -> list[int]:
    """The steps in which it is the turn of 1, whose drafts never pay."""
    found = []
    for step in range(steps):
        if 1 in turns.at(step):
            found.append(step)
            turns.pauses(1, step, most)
    return found


def test_pauses_double_up_to_the_longest() -> None:
    turns = Turns()
    turns.begin(1, 0)
    steps = looked_at(turns, 1200)
    assert [b - a for a, b in pairwise(steps)] == [1, 1, 2, 4, 8, 16, 32, 64, 128, 256, 256, 256]


def test_pauses_are_no_longer_than_was_said() -> None:
    turns = Turns()
    turns.begin(1, 0)
    steps = looked_at(turns, 40, most=7)
    assert [b - a for a, b in pairwise(steps)] == [1, 1, 2, 4, 8, 8, 8]


def test_of_whom_nothing_was_found_out_has_a_turn_soon_and_pauses_as_before() -> None:
    turns = Turns()
    turns.begin(1, 0)
    assert looked_at(turns, 130)[-1] == 128
    assert 1 in turns.at(256)
    turns.again(1, 256)
    assert not turns.at(256 + SOON - 1) and 1 in turns.at(256 + SOON)
    turns.pauses(1, 256 + SOON)
    assert not turns.at(511) and 1 in turns.at(512)


def test_pauses_end_together_whenever_they_began() -> None:
    turns = Turns()
    turned: set[int] = set()
    for number in range(16):
        turns.begin(number, 0)
    for step in range(1, 300):
        due = {one for one in turns.at(step) if one < step}
        for number in due:
            turns.pauses(number, step, 32)
        if due and step > 200:
            turned.add(step)
            assert due == set(range(16))
    assert turned == {224, 256, 288}


def test_where_it_pays_its_turn_is_in_every_step() -> None:
    turns = Turns()
    turns.begin(1, 0)
    assert all(1 in turns.at(step) for step in range(5))


def test_after_drafts_that_were_right_pauses_are_short_again() -> None:
    turns = Turns()
    turns.begin(1, 0)
    looked_at(turns, 100)
    turns.at(200)
    turns.pays(1)
    turns.pauses(1, 200)
    assert 1 in turns.at(201)


def test_with_another_batch_it_is_everybodys_turn() -> None:
    turns = Turns()
    for number in range(3):
        turns.begin(number, 0)
        turns.pauses(number, 0)
        turns.pauses(number, 1)
    turns.everybody()
    assert turns.at(2) == {0, 1, 2}


def test_who_has_ended_comes_no_more() -> None:
    turns = Turns()
    for number in range(1000):
        turns.begin(number, 0)
        turns.pauses(number, 0)
        turns.end(number)
    assert turns.at(10) == set()
    turns.pays(1)
    turns.everybody()
    assert turns.at(11) == set()


def test_a_newcomer_waits_for_its_turn_where_drafts_do_not_pay_for_others() -> None:
    turns = Turns()
    turns.begin(1, 0)
    looked_at(turns, 200)
    turns.begin(2, 199)
    first = next(step for step in range(200, 300) if 2 in turns.at(step))
    assert 200 < first <= 200 + NEWCOMERS
    turns.pays(1)
    turns.begin(3, first)
    assert 3 in turns.due


def test_nobodys_turn_is_missed_by_whoever_waits_for_the_next() -> None:
    turns = Turns()
    assert turns.next_step == math.inf
    turns.begin(1, 0)
    looked_at(turns, 100)
    step = turns.next_step
    assert all(not turns.at(one) for one in range(100, int(step))) and turns.at(int(step)) == {1}
