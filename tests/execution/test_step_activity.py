"""Whoever works beside steps rests while these are computed, and not otherwise."""

from __future__ import annotations

import time

import pytest

from inflight.execution import step_activity
from inflight.execution.step_activity import StepActivity


@pytest.fixture
def slept(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    found: list[float] = []
    monkeypatch.setattr(time, "sleep", found.append)
    return found


def test_nobody_rests_where_no_steps_are_computed(slept: list[float]) -> None:
    steps = StepActivity()
    steps.rest(0.001, 10, 1.0)
    steps.began(computes=False)
    steps.ended()
    steps.rest(0.001, 10, 1.0)
    assert not steps.is_going_on and not slept


def test_one_rests_for_times_what_was_worked_while_they_are(slept: list[float]) -> None:
    steps = StepActivity()
    steps.began(computes=True)
    steps.rest(0.001, 10, 1.0)
    steps.ended()
    steps.rest(0.002, 10, 1.0)
    steps.rest(0.5, 10, 1.0)
    assert slept == pytest.approx([0.01, 0.02, 1.0])


def test_steps_that_follow_one_another_go_on_between_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step_activity, "_BETWEEN_STEPS", 0.05)
    steps = StepActivity()
    steps.began(computes=True)
    time.sleep(0.1)
    assert steps.is_going_on, "however long one takes"
    steps.ended()
    assert steps.is_going_on
    time.sleep(0.1)
    assert not steps.is_going_on


def test_a_step_that_begins_transfers_alone_leaves_them_the_cores() -> None:
    steps = StepActivity()
    steps.began(computes=True)
    steps.ended()
    steps.began(computes=False)
    steps.ended()
    assert not steps.is_going_on
