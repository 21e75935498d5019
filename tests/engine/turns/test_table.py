"""Turns of real processes: never two at once, shares by weight, and nothing that a dead process leaves stops others."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from breadth import first_of

from inflight.engine.turns.table import TurnTable

from .worker import IS_READY, OVERLAPS, SECONDS, WIDTH, Task, board_of, computes, rests


class Workers:
    """What a supervisor does, and the board."""

    def __init__(self, leave: ExitStack, board: int) -> None:
        self.table = TurnTable.create(4)
        os.ftruncate(board, WIDTH * 8)
        self._board, self.board = board, board_of(board)
        self._leave = leave
        leave.callback(self.table.close)

    def start(self, place: int, **task: Any) -> subprocess.Popen[bytes]:
        told = Task(self.table.descriptors, self._board, place, **task)
        process = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("worker.py")), told.text()],
            pass_fds=(*self.table.descriptors.all, self._board),
        )
        self._leave.callback(process.wait)
        self._leave.callback(process.kill)
        wait_until(lambda: self.board[IS_READY + place] > 0)
        return process

    def seconds(self, *places: int, during: float) -> list[float]:
        """Computed by each in that time."""
        wait_until(lambda: all(self.board[SECONDS + place] > 0 for place in places))
        before = [self.board[SECONDS + place] for place in places]
        time.sleep(during)
        return [self.board[SECONDS + place] - was for place, was in zip(places, before, strict=True)]

    def goes_on(self, place: int) -> None:
        before = self.board[SECONDS + place]
        wait_until(lambda: self.board[SECONDS + place] > before + 0.02)

    def stop_within_a_layer(self, process: subprocess.Popen[bytes]) -> None:
        """The only one that computes."""

        def is_within() -> bool:
            process.send_signal(signal.SIGSTOP)
            os.waitpid(process.pid, os.WUNTRACED)
            if not computes(self.table.descriptors):
                return True
            rests(self.table.descriptors)
            process.send_signal(signal.SIGCONT)
            return False

        wait_until(is_within)

    @property
    def overlaps(self) -> float:
        return self.board[OVERLAPS]


def wait_until(is_so: Callable[[], bool], seconds: float = 20.0) -> None:
    end = time.monotonic() + seconds
    while not is_so():
        assert time.monotonic() < end, "it does not come"
        time.sleep(0.002)


@pytest.fixture
def workers() -> Iterator[Workers]:
    with tempfile.TemporaryFile() as board, ExitStack() as leave:
        yield Workers(leave, board.fileno())


@pytest.mark.parametrize("urgent", first_of([True, False]))
def test_two_that_always_want_share_by_weight(workers: Workers, urgent: bool) -> None:
    workers.start(0, weight=3.0, urgent=urgent)
    workers.start(2, weight=1.0, urgent=urgent)
    first, second = workers.seconds(0, 2, during=2.0)
    assert 2 < first / second < 4.5
    assert workers.overlaps == 0


def test_who_is_not_urgent_has_what_is_left_and_the_floor(workers: Workers) -> None:
    background = workers.start(0, urgent=False)
    alone = workers.seconds(0, during=0.5)[0]
    workers.start(1)
    behind, first = workers.seconds(0, 1, during=1.5)
    assert alone > 0.1 and 0 < behind < first / 5
    background.kill()
    workers.goes_on(1)
    assert workers.overlaps == 0


def test_urgent_work_that_comes_now_and_then_waits_for_a_layer_and_no_step(workers: Workers) -> None:
    workers.start(0, urgent=False, layers=100_000)
    workers.start(1, layers=4, pause=0.02)
    behind, first = workers.seconds(0, 1, during=1.0)
    assert behind > first > 0.02


@pytest.mark.parametrize("does", ["hold", "lock"])
def test_a_process_that_is_killed_stops_nobody(workers: Workers, does: str) -> None:
    """Nobody clears its place, and nobody has waited for it."""
    killed = workers.start(0, does=does)
    if does == "hold":
        workers.start(1)
        before = workers.board[SECONDS + 1]
        time.sleep(0.2)
        assert workers.board[SECONDS + 1] == before == 0
    else:
        with pytest.raises(BlockingIOError):
            fcntl.lockf(workers.table.descriptors.table, fcntl.LOCK_EX | fcntl.LOCK_NB, 1)
    killed.send_signal(signal.SIGKILL)
    if does == "lock":
        workers.start(1)
    workers.goes_on(1)
    assert workers.overlaps == 0


def test_whoever_is_killed_while_it_waits_or_computes_stops_nobody(workers: Workers) -> None:
    workers.start(0)
    for delay in (0.05, 0.0512, 0.0533):
        other = workers.start(1, layers=2000)
        time.sleep(delay)
        other.kill()
        workers.goes_on(0)
        workers.board[IS_READY + 1] = 0
    assert workers.overlaps == 0


def test_whoever_is_killed_within_a_layer_computes_beside_nobody(workers: Workers) -> None:
    killed = workers.start(0)
    workers.stop_within_a_layer(killed)
    workers.start(1)
    killed.kill()
    workers.goes_on(1)
    assert workers.overlaps == 0


def test_two_at_once_are_noticed(workers: Workers) -> None:
    """By what the other tests ask: here the second one is this process, which has no turn."""
    assert computes(workers.table.descriptors)
    workers.start(0)
    workers.goes_on(0)
    assert workers.overlaps > 0


def test_a_supervisor_passes_on_the_turn_of_the_dead(workers: Workers) -> None:
    killed = workers.start(0, does="hold")
    assert workers.table.accounts.holder == 0
    killed.kill()
    killed.wait()
    workers.table.clear(0, time.monotonic())
    assert workers.table.accounts.holder is None and not workers.table.accounts.is_attached(0)
    workers.board[IS_READY] = 0
    workers.start(0)
    workers.goes_on(0)


def test_a_place_is_one_process(workers: Workers) -> None:
    workers.start(0)
    workers.start(1)
    with pytest.raises(ValueError, match="Place 0 is taken by a process that lives"):
        workers.table.attach(0, 1.0, time.monotonic())
    workers.goes_on(0)
    workers.table.attach(2, 1.0, time.monotonic())
    workers.table.detach(time.monotonic())
    workers.goes_on(1)
    assert workers.overlaps == 0


def test_a_place_that_was_cleared_by_mistake_comes_back(workers: Workers) -> None:
    workers.start(0)
    workers.start(1)
    for _ in range(5):
        workers.table.clear(0, time.monotonic())
        workers.goes_on(0)
        workers.goes_on(1)


def test_the_table_leaves_no_descriptors() -> None:
    before = os.listdir("/dev/fd")
    TurnTable.create(3).close()
    with pytest.raises(ValueError, match="floor"):
        TurnTable.create(3, floor=1.5)
    assert os.listdir("/dev/fd") == before
