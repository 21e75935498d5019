"""Clocks. What depends on real time is only that it does not go back, and that waiting ends."""

from __future__ import annotations

import threading

from inflight.engine.clock import MonotonicClock, VirtualClock


def test_virtual_time_is_moved_by_steps_and_waits_alone() -> None:
    clock = VirtualClock(start=1.0)
    assert clock.now() == clock.now() == 1.0
    clock.passed(0.5)
    assert clock.now() == 1.5
    clock.wait_until(4.0)
    assert clock.now() == 4.0
    clock.wait_until(2.0)
    assert clock.now() == 4.0


def test_real_time_passes_by_itself_and_a_wait_can_be_cut_short() -> None:
    clock = MonotonicClock()
    before = clock.now()
    clock.passed(3600.0)
    assert before <= clock.now() < before + 3600
    clock.wait_until(before - 1)
    moment = clock.now() + 0.01
    clock.wait_until(moment)
    assert clock.now() >= moment
    clock, interrupt = MonotonicClock(), threading.Event()
    interrupt.set()
    clock.wait_until(clock.now() + 3600, interrupt)
