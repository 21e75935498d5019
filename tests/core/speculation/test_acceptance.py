"""Which drafts are right, and which sequences may be drafted for after which pauses."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest

from inflight.core.speculation.acceptance import (
    MAX_ACCEPT_RATE,
    MAX_FIRST_PAUSE,
    MAX_PAUSE,
    MAX_SHORT_PAUSES,
    PRIOR_ACCEPT_RATE,
    REFUSAL_DECAY,
    SHORT_PAUSE,
    Acceptance,
    DraftBackoff,
    SequenceAcceptance,
)


def taught(believed: tuple[float, ...], truth: float, steps: int = 400) -> tuple[Acceptance, random.Random]:
    """Sequences of five steps each, whose drafts are right as often as `truth` says."""
    acceptance, chance, of = Acceptance(), random.Random(1), SequenceAcceptance()
    for step in range(steps):
        of = SequenceAcceptance() if step % 5 == 0 else of
        right = 0
        while right < len(believed) and chance.random() < truth:
            right += 1
        acceptance.learn(of, believed, len(believed), right)
    return acceptance, chance


def test_before_there_is_evidence_a_drafter_is_believed() -> None:
    fresh = SequenceAcceptance()
    assert Acceptance().chances(fresh, (0.9, 0.5, 0.1), 3) == pytest.approx((0.9, 0.5, 0.1), abs=0.05)
    assert Acceptance().chances(fresh, (), 3) == (PRIOR_ACCEPT_RATE, PRIOR_ACCEPT_RATE, PRIOR_ACCEPT_RATE)


@pytest.mark.parametrize("truth", [0.1, 0.5, 0.9])
def test_what_a_drafter_says_comes_to_mean_what_came_of_it(truth: float) -> None:
    """Here it is as sure of everything; and of what it never said, nothing was learnt."""
    acceptance, _ = taught((0.7,) * 4, truth)
    surely, unseen = acceptance.chances(SequenceAcceptance(), (0.7, 0.2), 2)
    assert surely == pytest.approx(truth, abs=0.08)
    assert unseen == pytest.approx(0.2, abs=0.05)


def test_only_drafts_whose_forerunners_were_right_are_judged() -> None:
    """The second place is right whenever it is reached, though that is seldom."""
    acceptance, chance, of = Acceptance(), random.Random(2), SequenceAcceptance()
    for _ in range(600):
        acceptance.learn(SequenceAcceptance(), (), 2, 2 if chance.random() < 0.25 else 0)
    first, second = acceptance.chances(of, (), 2)
    assert first == pytest.approx(0.25, abs=0.08) and second > 0.9


def test_a_sequence_is_like_the_others_until_its_own_drafts_are_judged() -> None:
    acceptance, _ = taught((0.7,) * 4, 0.7)
    usual = acceptance.chances(SequenceAcceptance(), (0.7,), 1)[0]
    poor, fine = SequenceAcceptance(), SequenceAcceptance()
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
    chance, of, factors = random.Random(drafts), SequenceAcceptance(), []
    for _ in range(4000):
        right = 0
        while right < drafts and chance.random() < 0.8:
            right += 1
        of.add(right, 0.8 * min(drafts, right + 1))
        factors.append(of.factor)
    assert sum(factors) / len(factors) == pytest.approx(1.0, abs=0.04)


def test_refusals_fade_a_sequences_evidence() -> None:
    acceptance, of = taught((0.7,), 0.7)[0], SequenceAcceptance()
    for _ in range(8):
        acceptance.learn(of, (0.7,), 1, 0)
    bad = of.factor
    for _ in range(150):
        of.fade(REFUSAL_DECAY)
    assert bad < 0.5 and of.factor == pytest.approx(1.0, abs=0.05)


def asked_in_vain(backoff: DraftBackoff, steps: range, max_pause: int = MAX_PAUSE) -> list[int]:
    """Return the steps in which any sequence is due, where drafting for it never brings anything."""
    found = []
    for step in steps:
        if due := backoff.due(step):
            found.append(step)
            backoff.record_asked(due, step, 0.0)
            backoff.pause(due, step, max_pause)
    return found


def lengths(steps: list[int]) -> list[int]:
    return [later - earlier for earlier, later in pairwise(steps)]


def test_pauses_double_up_to_the_longest() -> None:
    backoff = DraftBackoff()
    backoff.begin(1, -1)
    assert lengths(asked_in_vain(backoff, range(1200))) == [1, 1, 2, 4, 8, 16, 32, 64, 128, 256, 256, 256]
    backoff = DraftBackoff()
    backoff.begin(1, -1)
    assert lengths(asked_in_vain(backoff, range(40), max_pause=4))[-6:] == [4] * 6


def test_pauses_end_together_whenever_they_began() -> None:
    backoff = DraftBackoff()
    for number in range(16):
        backoff.begin(number, 0)
        asked_in_vain(backoff, range(1 + 3 * number, 4 + 3 * number), 32)
    asked_in_vain(backoff, range(60, 200), 32)
    for step in range(200, 300):
        due = backoff.due(step)
        assert len(due) == (16 if step % 32 == 0 else 0)
        backoff.pause(due, step, 32)


def test_right_drafts_end_the_pauses_and_earn_short_ones() -> None:
    """Each right draft earns one pause of 8 steps, in which text that goes on repeating is found."""
    backoff = DraftBackoff()
    backoff.begin(1, -1)
    asked_in_vain(backoff, range(200))
    backoff.record_right({1: 2})
    assert not backoff.due(255) and backoff.due(256) == {1} == backoff.due(257)
    found = lengths(asked_in_vain(backoff, range(272, 400)))
    assert found.count(SHORT_PAUSE) == 1 + 2 and found[-1] > 2 * SHORT_PAUSE
    backoff.record_right({1: 100})
    assert lengths(asked_in_vain(backoff, range(528, 700))).count(SHORT_PAUSE) == 1 + MAX_SHORT_PAUSES


def test_a_newcomer_begins_with_half_the_last_pause_until_drafts_are_right() -> None:
    backoff = DraftBackoff()
    backoff.begin(1, -1)
    asked_in_vain(backoff, range(100))  # 128 was the last one
    backoff.begin(2, 99)
    first = 99 + 1 + MAX_FIRST_PAUSE  # at most
    assert not any(2 in backoff.due(step) for step in range(100, first)) and 2 in backoff.due(first)
    backoff.pause([2], first)
    assert not backoff.due(127) and backoff.due(128) == {1, 2}  # twice 64
    backoff.record_right({1: 1})
    backoff.begin(3, 170)
    assert 3 in backoff.due(171)


def test_first_questions_in_vain_pause_new_sequences_up_to_their_cost() -> None:
    backoff, step = DraftBackoff(), 0
    for number in range(20):
        backoff.begin(number, -1)
    found = []
    for step in range(200):
        if due := {one for one in backoff.due(step) if backoff.is_new(one)}:
            found.append(step)
            backoff.pause([min(due)], step)
            backoff.record_asked([min(due)], step, 20.5)
    assert lengths(found) == [1, 2, 4, 8, 16, *[21] * 8]
    assert not any(backoff.is_new(number) for number in range(len(found))) and backoff.is_new(len(found))
    backoff.record_right({0: 1})
    assert set(range(len(found), 20)) <= backoff.due(200)


def test_a_sequence_that_has_ended_is_not_due() -> None:
    backoff = DraftBackoff()
    for number in range(3):
        backoff.begin(number, 0)
    backoff.end(1)
    backoff.end(1)
    assert backoff.due(5) == {0, 2}
