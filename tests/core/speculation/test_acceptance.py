"""How likely drafts are right, and which sequences are due after which pauses."""

from __future__ import annotations

import random
from collections.abc import Collection
from itertools import pairwise

import pytest

from core.builders import view
from inflight.core.speculation.acceptance import (
    ASK_SECONDS,
    ASK_SHARE,
    MAX_ACCEPT_RATE,
    MAX_NEW,
    MAX_NEW_PAUSE,
    MAX_SHORT_PAUSES,
    PRIOR_ACCEPT_RATE,
    READ_SECONDS,
    ROUND_SECONDS,
    SHORT_PAUSE,
    Acceptance,
)

LONG, SHORT = 0.0004, 0.02  # seconds of steps after which the longest pauses are many steps, and few


def ask(
    acceptance: Acceptance, numbers: Collection[int], step: int = 0, chosen: Collection[int] = (), seconds: float = LONG
) -> None:
    acceptance.refuse([view(number) for number in sorted(numbers)], chosen, step, seconds)


def of(*numbers: int) -> Acceptance:
    """Sequences that have been asked about, with drafts."""
    acceptance = Acceptance()
    for number in numbers:
        acceptance.begin(number)
    ask(acceptance, numbers, -1, numbers)
    return acceptance


# -- how likely drafts are right --------------------------------------------------------------------------------


def taught(believed: tuple[float, ...], truth: float, steps: int = 400) -> Acceptance:
    """Sequences of five steps each, whose drafts are right as often as `truth` says; 1000 is one without any step."""
    acceptance, chance = of(*range(steps // 5), 1000), random.Random(1)
    for step in range(steps):
        right = 0
        while right < len(believed) and chance.random() < truth:
            right += 1
        acceptance.learn(step // 5, believed, len(believed), right)
    return acceptance


def test_before_there_is_evidence_a_drafter_is_believed() -> None:
    assert Acceptance().chances(0, (0.9, 0.5, 0.1), 3) == pytest.approx((0.9, 0.5, 0.1), abs=0.05)
    assert Acceptance().chances(0, (), 3) == (PRIOR_ACCEPT_RATE, PRIOR_ACCEPT_RATE, PRIOR_ACCEPT_RATE)


@pytest.mark.parametrize("truth", [0.1, 0.5, 0.9])
def test_what_a_drafter_says_comes_to_mean_what_came_of_it(truth: float) -> None:
    """Here it is as sure of everything; and of what it never said, nothing was learnt."""
    surely, unseen = taught((0.7,) * 4, truth).chances(1000, (0.7, 0.2), 2)
    assert surely == pytest.approx(truth, abs=0.08)
    assert unseen == pytest.approx(0.2, abs=0.05)


def test_only_drafts_whose_forerunners_were_right_are_judged() -> None:
    """The second place is right whenever it is reached, though that is seldom."""
    acceptance, chance = of(*range(601)), random.Random(2)
    for number in range(600):
        acceptance.learn(number, (), 2, 2 if chance.random() < 0.25 else 0)
    first, second = acceptance.chances(600, (), 2)
    assert first == pytest.approx(0.25, abs=0.08) and second > 0.9


def test_a_sequence_is_like_the_others_until_its_own_drafts_are_judged() -> None:
    acceptance, poor, fine = taught((0.7,) * 4, 0.7), 2000, 2001
    usual = acceptance.chances(1000, (0.7,), 1)[0]
    for number in (poor, fine):
        acceptance.begin(number)
    ask(acceptance, (poor, fine), 0, (poor, fine))
    seen = []
    for _ in range(6):
        acceptance.learn(poor, (0.7,) * 4, 4, 0)
        acceptance.learn(fine, (0.7,) * 4, 4, 4)
        seen.append((acceptance.chances(poor, (0.7,), 1)[0], acceptance.chances(fine, (0.7,), 1)[0]))
    assert all(low < usual < high <= MAX_ACCEPT_RATE for low, high in seen)
    assert [low for low, _ in seen] == sorted((low for low, _ in seen), reverse=True)
    assert seen[-1][0] < usual / 2


@pytest.mark.parametrize("drafts", [1, 5, 12])
def test_a_sequence_whose_drafts_are_right_as_often_as_the_others_has_their_chances(drafts: int) -> None:
    """However many are drafted: a step judges all that were right, and one that was not."""
    chance, acceptance, ratios = random.Random(drafts), of(0, 1), []
    for _ in range(4000):
        right = 0
        while right < drafts and chance.random() < 0.8:
            right += 1
        acceptance.learn(0, (0.8,) * drafts, drafts, right)
        mine, others = (acceptance.chances(number, (0.8,), 1)[0] for number in (0, 1))
        ratios.append(mine / others)
    assert sum(ratios) / len(ratios) == pytest.approx(1.0, abs=0.05)


def test_refusals_fade_a_sequences_evidence() -> None:
    acceptance = taught((0.7,), 0.7)
    for _ in range(8):
        acceptance.learn(0, (0.7,), 1, 0)
    (bad,), (usual,) = acceptance.chances(0, (0.7,), 1), acceptance.chances(1000, (0.7,), 1)
    for step in range(150):
        ask(acceptance, (0,), step)
    assert bad < 0.5 * usual and acceptance.chances(0, (0.7,), 1)[0] == pytest.approx(usual, rel=0.05)


# -- which sequences are due ------------------------------------------------------------------------------------


def asked_in_vain(acceptance: Acceptance, steps: range, seconds: float = LONG) -> list[int]:
    """Return the steps in which any sequence is due, where drafting for it never brings anything."""
    found = []
    for step in steps:
        if due := acceptance.due(step):
            found.append(step)
            ask(acceptance, due, step, seconds=seconds)
    return found


def lengths(steps: list[int]) -> list[int]:
    return [later - earlier for earlier, later in pairwise(steps)]


def test_pauses_double_until_asking_takes_a_small_share_of_the_time() -> None:
    assert lengths(asked_in_vain(of(1), range(1200))) == [1, 1, 2, 4, 8, 16, 32, 64, 128, 256, 256, 256]
    assert lengths(asked_in_vain(of(1), range(160), SHORT))[-6:] == [8] * 6  # of 0.06 ms, beside 20 ms


def test_pauses_end_together_whenever_they_began() -> None:
    acceptance = Acceptance()
    for number in range(16):
        acceptance.begin(number)
        ask(acceptance, (number,), 3 * number, (number,))
        asked_in_vain(acceptance, range(1 + 3 * number, 4 + 3 * number), SHORT)
    asked_in_vain(acceptance, range(60, 200), SHORT)
    for step in range(200, 300):
        due = acceptance.due(step)
        assert len(due) == (16 if step % 32 == 0 else 0)
        ask(acceptance, due, step, seconds=SHORT)


def test_right_drafts_end_the_pauses_and_earn_short_ones() -> None:
    """Each right draft earns one pause of 8 steps, in which text that goes on repeating is found."""
    acceptance = of(1)
    asked_in_vain(acceptance, range(200))
    acceptance.learn(1, (0.5,) * 2, 2, 2)
    assert not acceptance.due(255) and acceptance.due(256) == {1} == acceptance.due(257)
    found = lengths(asked_in_vain(acceptance, range(272, 400)))
    assert found.count(SHORT_PAUSE) == 1 + 2 and found[-1] > 2 * SHORT_PAUSE
    acceptance.learn(1, (0.5,) * 9, 9, 9)
    assert lengths(asked_in_vain(acceptance, range(528, 700))).count(SHORT_PAUSE) == 1 + MAX_SHORT_PAUSES


def test_new_sequences_share_a_pause_while_first_questions_are_in_vain() -> None:
    """Until these questions take a small share of the time; after the first ones, about a few, each is about one."""
    acceptance, found, asked = Acceptance(), [], set()
    for number in range(200):
        acceptance.begin(number)
    for step in range(1200):
        if new := set(acceptance.due(step)) - asked:
            found.append(step)
            assert new == set(range(len(asked), len(asked) + (1 if asked else MAX_NEW)))  # the oldest
            ask(acceptance, new, step)
            asked |= new
    one = view(0)
    read = READ_SECONDS * (one.prompt_tokens + one.output_tokens)
    longest = -(-(ROUND_SECONDS + read) // (ASK_SHARE * LONG))
    assert lengths(found)[:4] == [1, 1, 2, 4] and max(lengths(found)) == longest < MAX_NEW_PAUSE


def test_right_drafts_have_new_sequences_asked_about_at_once() -> None:
    acceptance, asked = Acceptance(), set()
    for number in range(60):
        acceptance.begin(number)
    for step in range(131):
        due = acceptance.due(step)
        ask(acceptance, due, step)
        asked.update(due)
    assert asked.issuperset(acceptance.due(131))
    acceptance.learn(0, (0.5,), 1, 1)
    assert len(set(acceptance.due(131)) - asked) == 1
    for _ in range(4):
        acceptance.learn(0, (0.5,), 1, 1)
    assert len(set(acceptance.due(131)) - asked) == MAX_NEW


def test_a_new_sequence_that_was_asked_about_in_vain_begins_with_the_pause_of_the_others() -> None:
    acceptance = Acceptance()
    for number in range(40):
        acceptance.begin(number)
        asked_in_vain(acceptance, range(20 * number, 20 * number + 20))
    acceptance.begin(99)
    ask(acceptance, (99,), 1000)
    assert not any(99 in acceptance.due(step) for step in range(1001, 1024)) and 99 in acceptance.due(1024)


def test_a_sequence_that_has_ended_is_not_due() -> None:
    acceptance = of(0, 1)
    acceptance.begin(2)
    acceptance.begin(3)
    for number in (1, 1, 3):
        acceptance.end(number)
    assert acceptance.due(5) == {0, 2}


def test_questions_in_vain_are_counted_in_seconds() -> None:
    acceptance, one = Acceptance(), view(0)
    acceptance.begin(0)
    tokens = one.prompt_tokens + one.output_tokens
    assert acceptance.refuse([one], (), 0, LONG) == pytest.approx(ASK_SECONDS + READ_SECONDS * tokens)
    assert acceptance.refuse([one], (), 1, LONG) == ASK_SECONDS
    assert acceptance.refuse([one], (0,), 2, LONG) == 0.0
