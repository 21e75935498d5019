"""How often drafts are right: what a drafter says comes to mean it, and sequences differ."""

from __future__ import annotations

import random

import pytest

from inflight.core.speculation.acceptance import MAX_ACCEPT_RATE, PRIOR_ACCEPT_RATE, Acceptance, SequenceAcceptance


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
    surely, untold = acceptance.chances(SequenceAcceptance(), (0.7, 0.2), 2)
    assert surely == pytest.approx(truth, abs=0.08)
    assert untold == pytest.approx(0.2, abs=0.05)


def test_only_drafts_whose_forerunners_were_right_are_judged() -> None:
    """The second place is right whenever it is reached, though that is seldom."""
    acceptance, chance, of = Acceptance(), random.Random(2), SequenceAcceptance()
    for _ in range(600):
        acceptance.learn(SequenceAcceptance(), (), 2, 2 if chance.random() < 0.25 else 0)
    first, second = acceptance.chances(of, (), 2)
    assert first == pytest.approx(0.25, abs=0.08) and second > 0.9


def test_a_sequence_is_like_the_others_until_its_own_drafts_tell() -> None:
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
    """However many are drafted: a step tells of all that were right, and of one that was not."""
    chance, of, factors = random.Random(drafts), SequenceAcceptance(), []
    for _ in range(4000):
        right = 0
        while right < drafts and chance.random() < 0.8:
            right += 1
        of.add(0.8 * min(drafts, right + 1), right)
        factors.append(of.factor)
    assert sum(factors) / len(factors) == pytest.approx(1.0, abs=0.04)


def test_refusals_fade_a_sequences_evidence() -> None:
    acceptance, of = taught((0.7,), 0.7)[0], SequenceAcceptance()
    for _ in range(8):
        acceptance.learn(of, (0.7,), 1, 0)
    bad = of.factor
    for _ in range(150):
        of.fade()
    assert bad < 0.5 and of.factor == pytest.approx(1.0, abs=0.05)
