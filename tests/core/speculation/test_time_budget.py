"""What may be lost to drafts: a share of the time, and what they won."""

from __future__ import annotations

import random

import pytest

from inflight.core.speculation.time_budget import KEPT_STEPS, RESERVE, SHARE, TimeBudget

STEP = 0.01


def test_what_is_lost_is_a_share_of_the_time() -> None:
    """A spender that risks whatever it may."""
    budget, lost, steps = TimeBudget(), 0.0, 50_000
    for _ in range(steps):
        budget.passed(STEP)
        if budget.allows(STEP / 4):
            budget.settle(0.0, STEP / 4)
            lost += STEP / 4
    assert budget.lost == pytest.approx(lost)
    assert 0.9 * SHARE * steps * STEP < lost <= SHARE * (RESERVE + steps * STEP)


def test_what_was_won_may_be_lost_again_and_no_more() -> None:
    budget, chance, time = TimeBudget(), random.Random(3), 0.0
    for _ in range(10_000):
        budget.passed(STEP)
        time += STEP
        if budget.allows(STEP):
            budget.settle(2 * STEP if chance.random() < 0.4 else 0.0, STEP)
        assert budget.lost - budget.won <= SHARE * (RESERVE + time) + STEP
    assert budget.won > 0.1


def test_a_run_of_luck_is_kept_for_some_steps_only() -> None:
    budget = TimeBudget()
    for _ in range(1000):
        budget.passed(STEP)
        budget.settle(3 * STEP, STEP)
    assert budget.seconds <= KEPT_STEPS * STEP * 1.001
    assert budget.won == pytest.approx(1000 * 2 * STEP)


def test_where_steps_are_long_one_of_them_may_be_risked() -> None:
    budget = TimeBudget()
    for _ in range(round(1 / SHARE)):
        budget.passed(2.0)
    assert budget.allows(1.9) and not budget.allows(4.0)
