"""The kernels' threads: many backends at once, many calls, calls from several Python threads, and no work when idle."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np

from inflight.cpus import ThreadCpus
from inflight.execution.backends import open_backend
from inflight.execution.backends.native import NativeBackend, available_isas
from inflight.execution.backends.protocol import Backend

from .material import OnArrays, normal

TASKS = Path("/proc/self/task")


def made(*settings: Any, **more: Any) -> OnArrays:
    return OnArrays(NativeBackend(*settings, **more))


def test_open_backend_gives_what_is_asked_for(monkeypatch):
    for isa in [*available_isas(), "reference"]:
        ops = open_backend("float32", 1, isa)
        assert isinstance(ops, Backend)
        assert ops.name in (isa, f"native {isa}")
        monkeypatch.setenv("INFLIGHT_ISA", isa)
        assert open_backend("bfloat16", 1).name == ops.name


def test_pinned_threads_stay_on_their_cores():
    cores = sorted(os.sched_getaffinity(0))
    before = {task.name for task in TASKS.iterdir()}
    ends = [(cores[0],), (cores[-1],)]
    ops = made("float32", 4, cpus=ThreadCpus((*ends, *ends)))
    multiply(ops)
    want = sorted([[cores[-1]], [cores[0]], [cores[-1]]])  # all but the caller
    for _ in range(1000):  # a thread that has not run yet has not taken its core
        own = [task.name for task in TASKS.iterdir() if task.name not in before]
        allowed = sorted(sorted(os.sched_getaffinity(int(name))) for name in own)
        if allowed == want:
            break
        time.sleep(0.01)
    assert allowed == want
    assert os.sched_getaffinity(0) == set(cores), "who starts a process must not hand on one core"


def test_a_caller_that_is_held_stays_on_its_cpus_whichever_thread_it_is():
    cores = sorted(os.sched_getaffinity(0))
    found = {}

    def call():
        for last in (cores[0], cores[-1]):
            multiply(made("float32", 2, cpus=ThreadCpus(((last,), (last,)), hold_caller=True)))
            found[last] = os.sched_getaffinity(0)

    caller = threading.Thread(target=call)
    caller.start()
    caller.join()
    assert found == {last: {last} for last in found}
    assert os.sched_getaffinity(0) == set(cores), "another thread is not held"


def test_pages_of_packed_weights_are_first_written_by_the_thread_that_reads_them():
    cores = sorted(os.sched_getaffinity(0))
    before = {task.name for task in TASKS.iterdir()}
    ops = made("float32", 3, cpus=ThreadCpus(((cores[0],),) * 3, first_touch=True))
    weight, x = normal(1, 12 * 1024, 1024), normal(2, 3, 1024)  # 48 MiB, 24 huge pages
    linear, out = ops.pack_linear([weight]), np.empty((3, 12 * 1024), np.float32)
    own = [task for task in TASKS.iterdir() if task.name not in before]
    faults = [int(task.joinpath("stat").read_text().rpartition(")")[2].split()[7]) for task in own]
    assert sum(count >= 6 for count in faults) >= 2, "two workers have a third of the pages each"
    assert os.sched_getaffinity(0) == set(cores), "the caller is where it was for the moment only"
    ops.linear(x, linear, out)
    same = made("float32", 3)
    want = np.empty_like(out)
    same.linear(x, same.pack_linear([weight]), want)
    np.testing.assert_array_equal(out, want)


def multiply(ops: OnArrays) -> None:
    linear, x, out = ops.pack_linear([normal(1, 600, 64)]), normal(2, 9, 64), np.empty((9, 600), np.float32)
    ops.linear(x, linear, out)


def test_many_small_jobs_on_several_pools():
    weight, x = normal(1, 600, 64), normal(2, 9, 64)
    want = x @ weight.T
    for _ in range(20):
        pools = [made("float32", threads) for threads in (1, 2, 4)]
        packed = [ops.pack_linear([weight]) for ops in pools]
        for _ in range(50):
            for ops, linear in zip(pools, packed, strict=True):
                out = np.empty((9, 600), np.float32)
                ops.linear(x, linear, out)
                np.testing.assert_allclose(out, want, atol=1e-4)


def test_every_group_of_outputs_is_computed_once():
    """Threads take runs of neighbouring groups and halve each other's: an addition would show what is done twice."""
    x = normal(2, 3, 400)
    for threads in (1, 2, 3, 5, 8):
        ops = made("float32", threads)
        for rows in (1, 64, 65, 200, 640, 2500):
            weight = normal(rows, rows, 400)
            linear, want = ops.pack_linear([weight]), x @ weight.T
            for _ in range(30):
                out = np.zeros((3, rows), np.float32)
                ops.linear_residual(x, linear, out)
                np.testing.assert_allclose(out, want, atol=1e-3)


def test_calls_from_several_threads_take_turns():
    ops = made("float32", 2)
    linear, x = ops.pack_linear([normal(1, 600, 64)]), normal(2, 9, 64)
    want = np.empty((9, 600), np.float32)
    ops.linear(x, linear, want)
    wrong = []

    def call() -> None:
        for _ in range(100):
            out = np.empty((9, 600), np.float32)
            ops.linear(x, linear, out)
            if not np.array_equal(out, want):
                wrong.append(out)

    callers = [threading.Thread(target=call) for _ in range(4)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    assert not wrong


def test_idle_threads_sleep():
    ops = made("float32", 3)
    linear, out = ops.pack_linear([normal(1, 600, 64)]), np.empty((9, 600), np.float32)
    ops.linear(normal(2, 9, 64), linear, out)
    time.sleep(0.05)
    before = time.process_time()
    time.sleep(0.3)
    assert time.process_time() - before < 0.1
