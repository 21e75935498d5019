"""Rounds: what questions take is told by rounds with them against rounds without."""

from __future__ import annotations

import pytest

from inflight.core.speculation.rounds import OUTLIER, Rounds


def test_what_questions_take_is_the_difference_between_rounds() -> None:
    rounds = Rounds(asking=1e-4)
    for _ in range(200):
        assert rounds.observe(3e-4, ahead=False, asked=None) == 0.0
        rounds.observe(5e-4, ahead=False, asked=0.0)
    assert rounds.asking == pytest.approx(2e-4, rel=0.01)
    assert rounds.observe(5e-4, ahead=False, asked=0.0) == pytest.approx(2e-4, rel=0.01)
    assert rounds.unasked == pytest.approx(3e-4)  # whatever questions take


def test_a_round_that_took_long_for_other_reasons_counts_little() -> None:
    rounds = Rounds(asking=1e-4)
    rounds.observe(3e-4, ahead=False, asked=None)
    assert rounds.observe(1.0, ahead=False, asked=0.0) == pytest.approx(OUTLIER * 1e-4)
    assert rounds.observe(1e-4, ahead=False, asked=0.0) == 0.0  # and one that took less than others, nothing


def test_what_took_nothing_for_long_may_come_to_take_something() -> None:
    rounds = Rounds(asking=1e-4)
    rounds.observe(3e-4, ahead=False, asked=None)
    for _ in range(500):
        rounds.observe(1e-4, ahead=False, asked=0.0)
    assert rounds.asking < 1e-9
    for _ in range(100):
        rounds.observe(5e-4, ahead=False, asked=0.0)
    assert rounds.asking == pytest.approx(2e-4, rel=0.01)


def test_planning_is_hidden_beside_a_step_and_not_behind_its_result() -> None:
    rounds = Rounds(asking=1e-4)
    rounds.observe(4e-4, ahead=False, asked=0.0)
    assert rounds.unhidden == 0.0  # nothing was planned ahead, so that nothing is missed
    rounds.observe(1e-4, ahead=True, asked=None)
    assert rounds.unhidden == pytest.approx(3e-4) and rounds.unasked == pytest.approx(1e-4)


def test_a_first_round_that_took_long_does_not_make_questions_look_free_for_long() -> None:
    rounds = Rounds(asking=1e-4)
    rounds.observe(1e-3, ahead=False, asked=None)
    for _ in range(15):
        rounds.observe(3e-4, ahead=False, asked=None)
    assert rounds.unasked < 3.1e-4
    assert rounds.observe(5e-4, ahead=False, asked=0.0) == pytest.approx(2e-4, rel=0.05)
