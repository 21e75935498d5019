"""Stages of a plan: how many of how many, and the time that is left."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path

import pytest

from inflight.cpus import usable_cpus
from inflight.planning.parallel import WorkerKilled, cores, run_all, running_beside
from inflight.planning.stages import Stages


def test_the_time_left_follows_from_the_work_that_is_done() -> None:
    now, said = 0.0, list[str]()
    stages = Stages({"a": 4.0, "b": 2.0, "c": 6.0}, said.append, now=lambda: now)
    stages.begin("a")
    now = 8.0
    stages.end("a")
    stages.begin("b")
    assert said == ["1 of 3: a", "2 of 3: b; about 16 s left"]
    assert stages.seconds_per_trial == 2.0


def test_what_is_skipped_and_what_comes_besides_leave_the_number_of_all() -> None:
    said: list[str] = []
    stages = Stages({"a": 1.0, "b": 1.0}, said.append, now=lambda: 0.0)
    stages.begin("a")
    stages.end("a")
    stages.skip("b")
    stages.skip("another")
    stages.begin("c", 1.0)
    assert said == ["1 of 2: a", "2 of 2: c"]
    said.clear()
    stages = Stages(dict.fromkeys("abcd", 1.0), said.append, now=lambda: 0.0)
    stages.begin("a")
    stages.end("a")
    stages.skip("b")
    stages.begin("c")
    stages.end("c")
    stages.begin("another")
    stages.end("another")
    stages.begin("d")
    assert said == ["1 of 4: a", "3 of 4: c", "3 of 4: another", "4 of 4: d"]


def test_stages_at_once_share_the_time() -> None:
    now, said = 0.0, list[str]()
    stages = Stages(dict.fromkeys("abcde", 1.0), said.append, at_once=2, seconds_per_trial=3.0, now=lambda: now)
    now = 2.0
    stages.end("a", reports=True)
    stages.end("b", reports=True)
    assert said == ["1 of 5: a; about 8 s left", "2 of 5: b; about 3 s left"]


@pytest.mark.parametrize("workers", [1, 2])
def test_jobs_have_their_results_by_name_in_their_order(workers: int) -> None:
    ended: list[str] = []
    jobs = {name: (lambda name=name: name.upper()) for name in "abc"}
    found = run_all(jobs, workers, ended.append)
    assert list(found.items()) == [("a", "A"), ("b", "B"), ("c", "C")]
    assert sorted(ended) == ["a", "b", "c"]


@pytest.mark.parametrize("workers", [1, 2, 8])
def test_a_job_begins_with_the_result_of_the_one_that_it_needs(workers: int) -> None:
    ended: list[str] = []
    jobs = {"a": lambda: 1, "c": lambda number: number + 1, "b": lambda: 40, "d": lambda number: number + 2}
    needs = {"c": "b", "d": "c"}
    assert run_all(jobs, workers, ended.append, needs) == {"a": 1, "b": 40, "c": 41, "d": 43}
    assert ended.index("b") < ended.index("c") < ended.index("d")


@pytest.mark.parametrize("workers", [1, 2])
def test_an_error_of_a_job_is_raised(workers: int) -> None:
    def fails() -> None:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        run_all({"a": fails, "b": lambda: 1}, workers, lambda name: None)


def test_a_worker_that_is_killed_ends_all_with_a_sentence() -> None:
    def dies() -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    with pytest.raises(WorkerKilled, match="ended with -9 before its result came"):
        run_all({"a": dies, "b": lambda: 1, "c": lambda: 1}, 2, lambda name: None)


def test_a_worker_that_is_killed_within_its_result_ends_all_with_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    def send(self: Connection, result: object) -> None:
        os.write(self.fileno(), (1000).to_bytes(4, "big"))  # the length of a result, of which no byte follows
        os.kill(os.getpid(), signal.SIGKILL)

    monkeypatch.setattr(Connection, "send", send)
    with pytest.raises(WorkerKilled, match="ended with -9 before its result came, as where memory runs out"):
        run_all({"a": lambda: 1, "b": lambda: 1}, 2, lambda name: None)


def test_a_result_that_cannot_be_sent_is_no_lack_of_memory() -> None:
    with pytest.raises(TypeError, match="cannot be sent between processes"):
        run_all({"a": lambda: lambda: 1, "b": lambda: 1}, 2, lambda name: None)


def test_where_the_system_makes_no_process_jobs_run_here(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: object) -> None:
        raise OSError(11, "Resource temporarily unavailable")

    monkeypatch.setattr("multiprocessing.context.ForkProcess.start", refuse)
    ended: list[str] = []
    assert run_all({"a": os.getpid, "b": os.getpid}, 2, ended.append) == dict.fromkeys("ab", os.getpid())
    assert ended == ["a", "b"]
    with running_beside(lambda: pytest.fail("it runs beside"), 2):
        pass


def test_workers_end_with_the_process_that_began_them(tmp_path: Path) -> None:
    program = """
import os, time, pathlib, sys
from inflight.planning.parallel import run_all
def job(name):
    (pathlib.Path(sys.argv[1]) / name).write_text(str(os.getpid()))
    time.sleep(3600)
run_all({name: (lambda name=name: job(name)) for name in "ab"}, 2, print)
"""
    begun = subprocess.Popen([sys.executable, "-c", program, str(tmp_path)])
    files = [tmp_path / name for name in "ab"]
    while not all(one.exists() and one.read_text() for one in files):
        time.sleep(0.01)
    begun.terminate()
    begun.wait()
    for one in files:
        while _is_alive(int(one.read_text())):
            time.sleep(0.01)


def _is_alive(process: int) -> bool:
    """Whether a process runs: one that ended may wait to be reaped."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_a_container_s_quota_bounds_the_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    found = replace(usable_cpus(), usable=tuple(range(64)), quota=2.0)
    monkeypatch.setattr("inflight.planning.parallel.usable_cpus", lambda: found)
    monkeypatch.setattr("threading.active_count", lambda: 1)
    assert cores() == 2


def test_a_job_beside_others_stores_what_it_finds_and_ends_with_them(tmp_path: Path) -> None:
    def store() -> None:
        (tmp_path / "found").touch()
        time.sleep(3600)

    with running_beside(store, 2):
        while not (tmp_path / "found").exists():
            time.sleep(0.001)
    assert not multiprocessing.active_children()
    with running_beside(lambda: pytest.fail("with one worker nothing runs beside"), 1):
        pass
