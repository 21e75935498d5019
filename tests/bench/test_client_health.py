from __future__ import annotations

import time

import pytest

from inflight.bench.client_health import (
    MACHINE_LIMIT_S,
    OWN_LIMIT_S,
    TICK_S,
    HealthMonitor,
    RunQueueDelay,
    WorkerHealth,
    assess,
)


def watch_of(*lags: float) -> WorkerHealth:
    """A watch whose ticks were so late."""
    watch, now = HealthMonitor(), 0.0
    watch.begin(now)
    for lag in lags:
        now += TICK_S + lag
        watch.tick(now)
    return watch.health(now)


def test_a_late_tick_stands_for_the_looks_that_it_kept_from_happening() -> None:
    quiet = [0.0] * 98
    assert watch_of(*quiet, 0.001).lag <= 0.001
    late = watch_of(*quiet, 10 * TICK_S)
    assert late.worst == pytest.approx(10 * TICK_S)
    assert late.lag > 8 * TICK_S  # ten of 108 looks were late, the latest by ten ticks


def test_the_figures_of_the_worst_process_count() -> None:
    health = assess([WorkerHealth(lag=0.001, busy=0.2), WorkerHealth(lag=0.003, worst=0.1, busy=0.1)], closed=False)
    assert (health.processes, health.lag_p99_s, health.worst_lag_s, health.busy) == (2, 0.003, 0.1, 0.2)
    assert health.valid


def test_a_client_that_is_late_by_its_own_work_makes_the_run_invalid() -> None:
    health = assess([WorkerHealth(lag=0.02, delay=0.02, own=2 * OWN_LIMIT_S)], closed=False)
    assert not health.valid
    assert "10.0 ms late" in health.faults[0] and "--processes 2" in health.faults[0]


def test_waiting_for_a_core_is_separate_and_borne_longer() -> None:
    assert assess([WorkerHealth(lag=2 * OWN_LIMIT_S, own=0.0)], closed=False).valid
    health = assess([WorkerHealth(lag=0.001, delay=2 * MACHINE_LIMIT_S, own=0.0)], closed=False)
    assert len(health.faults) == 1
    assert "waited for a core" in health.faults[0] and "50.0 ms" in health.faults[0]
    assert "--processes" not in health.faults[0]


def test_a_closed_loop_at_a_full_core_runs_at_the_clients_pace() -> None:
    full = [WorkerHealth(busy=0.99)]
    assert "99% of a core" in assess(full, closed=True).faults[0]
    assert assess(full, closed=False).valid


def test_time_without_a_core_is_no_work_of_its_own() -> None:
    core = RunQueueDelay()
    before = core.waited()
    time.sleep(0.02)  # not ready to run: no waiting either
    assert 0.0 <= core.waited() - before < 0.02
    core.close()


def test_late_sending_counts_as_own_where_no_other_process_had_the_core() -> None:
    watch = HealthMonitor()
    watch.begin(0.0)
    for _ in range(100):
        watch.sent(10.0)
    health = watch.health(1.0)
    assert health.delay == 10.0
    assert health.own > 5.0  # less what this machine's others took meanwhile
