"""Threads of a tier, and the private copies by which they read and write an engine's blocks.

Threads work where steps leave cores idle, and one that hangs does not keep the engine alive. It touches blocks only
while a transfer has them: once a transfer is released, nothing is read from its blocks or written to them.
"""

from __future__ import annotations

import os
import queue
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future

READING, WRITING = 5, 19  # niceness: requests wait for what is read, none for what is written

Job = tuple[Future[None], Callable[[], None]]


class BackgroundThreads:
    def __init__(self, count: int, name: str, niceness: int):
        """Start `count` threads of this name and niceness."""
        self._jobs: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._threads = [
            threading.Thread(target=self._run, args=(niceness,), name=f"{name}-{index}", daemon=True)
            for index in range(count)
        ]
        for thread in self._threads:
            thread.start()

    def submit(self, job: Callable[[], None]) -> Future[None]:
        """Queue a job; the future has its error."""
        future: Future[None] = Future()
        self._jobs.put((future, job))
        return future

    def close(self, seconds: float) -> None:
        """Wait so long for queued jobs; a thread that takes longer is left running, and ends with the process."""
        for _ in self._threads:
            self._jobs.put(None)
        for thread in self._threads:
            thread.join(seconds / len(self._threads))

    def _run(self, niceness: int) -> None:
        _lower_priority(niceness)
        while (job := self._jobs.get()) is not None:
            future, call = job
            try:
                call()
            except BaseException as fault:  # raised by the future
                future.set_exception(fault)
            else:
                future.set_result(None)


def _lower_priority(niceness: int) -> None:
    try:
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), niceness)
    except (AttributeError, OSError):
        return  # the system has priorities of processes alone


class Released(RuntimeError):
    """The transfer was released, since it made no progress for too long."""


class BlockCopies:
    def __init__(self, views: Sequence[memoryview]):
        """Copy to or from these views of a transfer's blocks."""
        self._views = views
        self._lock = threading.Lock()
        self._is_released = False
        self.touched = 0.0  # time of the last progress, on the monotonic clock; 0: no thread has begun

    def __len__(self) -> int:
        return len(self._views)

    def nbytes(self, at: int) -> int:
        return len(self._views[at])

    def take(self) -> list[memoryview]:
        """Return copies of all blocks. Raises Released."""
        self.touch()
        with self._lock:
            self._check()
            return [memoryview(bytes(view)) for view in self._views]

    def put(self, at: int, content: memoryview) -> None:
        """Fill a block. Raises Released."""
        with self._lock:
            self._check()
            self._views[at][:] = content
        self.touch()

    def touch(self) -> None:
        self.touched = time.monotonic()

    def release(self) -> None:
        """Refuse all further copies."""
        with self._lock:
            self._is_released = True

    def _check(self) -> None:
        if self._is_released:
            raise Released("the transfer was released after its time limit")
