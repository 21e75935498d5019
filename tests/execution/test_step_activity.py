"""Work beside steps rests while these are computed, and not otherwise."""

from __future__ import annotations

import threading
import time

import pytest

from inflight.execution import step_activity
from inflight.execution.step_activity import StepActivity


@pytest.fixture
def slept(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    found: list[float] = []
    monkeypatch.setattr(time, "sleep", found.append)
    return found


def test_no_work_rests_where_no_steps_are_computed(slept: list[float]) -> None:
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


def test_a_small_piece_waits_for_the_end_of_the_step_that_is_being_computed() -> None:
    steps, passed = StepActivity(), []
    steps.await_gap(1.0, 10, 10)  # nothing is
    steps.began(computes=True)

    def work() -> None:
        steps.await_gap(1.0, 10, 10)
        passed.append(steps.is_going_on)

    thread = threading.Thread(target=work)
    thread.start()
    time.sleep(0.05)
    assert not passed
    steps.ended()
    thread.join(5)
    assert passed == [True], "between two steps, though others follow"


def test_it_does_not_wait_for_long_steps_longer_than_it_would_rest() -> None:
    steps = StepActivity()
    steps.began(computes=True)
    began = time.monotonic()
    steps.await_gap(0.001, 20, 10)
    steps.await_gap(5.0, 20, 0.02)
    assert 0.03 < time.monotonic() - began < 5
