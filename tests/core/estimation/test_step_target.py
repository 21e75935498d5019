"""How long steps with background work may be: from what foreground work takes by itself, and from who is expected."""

from __future__ import annotations

import math

import pytest

from inflight.core.estimation.step_target import ALLOWED, ENOUGH, StepTarget

FULL = 0.2  # seconds of a full step


def learnt(ttft: float = 0.5, gap: float = 0.15, rate: float = 2.0) -> StepTarget:
    target = StepTarget()
    for _ in range(2 * int(ENOUGH)):
        target.arrives(rate)
        target.first_token("interactive", ttft)
        target.gap(gap, streams=2)
    return target


def test_without_newcomers_nothing_holds_it_back() -> None:
    assert StepTarget().seconds(False, 0.0, FULL) == math.inf
    assert learnt().seconds(False, 1e-9, FULL) == math.inf


def test_half_a_full_step_until_enough_is_known() -> None:
    target = StepTarget()
    target.arrives(2.0)
    target.first_token("interactive", 0.01)
    target.gap(0.001, streams=1)
    assert target.seconds(True, 2.0, FULL) == target.seconds(False, 2.0, FULL) == FULL / 2


def test_newcomers_wait_a_small_share_of_what_they_wait_anyway() -> None:
    for ttft in (0.1, 0.3, 0.6):
        step = learnt(ttft).seconds(False, 2.0, FULL)
        assert step / 2 == pytest.approx(ALLOWED * ttft, rel=0.12)
    assert learnt(ttft=60.0).seconds(False, 2.0, FULL) == FULL / 2  # at most, since longer steps gain little


def test_the_lane_with_the_shortest_times_counts() -> None:
    target = learnt(ttft=0.6)
    for _ in range(int(ENOUGH) + 1):
        target.first_token("chat", 0.2)
    assert target.seconds(False, 2.0, FULL) == pytest.approx(learnt(ttft=0.2).seconds(False, 2.0, FULL))


def test_beside_running_streams_no_longer_than_their_own_longest_gaps() -> None:
    target = learnt(ttft=60.0, gap=0.04)
    assert target.seconds(False, 2.0, FULL) == FULL / 2
    assert target.seconds(True, 2.0, FULL) == pytest.approx(0.04 * (1 + ALLOWED), rel=0.07)
    for _ in range(200):
        target.gap(10.0, streams=0)  # nobody waited for these
    assert target.seconds(True, 2.0, FULL) < 0.05


def test_a_forecast_burst_makes_steps_shorter_and_a_lull_no_longer() -> None:
    target = learnt(rate=2.0)
    usual = target.seconds(False, 2.0, FULL)
    steps = [target.seconds(False, rate, FULL) for rate in (0.5, 2.0, 4.0, 6.0, 500.0)]
    assert steps[:2] == [usual, usual] and steps == sorted(steps, reverse=True)
    assert steps[2] == pytest.approx(usual / math.sqrt(2)) and steps[-1] == usual / 2
