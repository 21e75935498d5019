"""Threads of a tier: they work where the steps leave cores idle, and a thread that hangs does not keep the engine
alive.

Knows the system's priorities and futures; nothing of blocks.
"""

from __future__ import annotations

import os
import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future

READING, WRITING = 5, 19  # niceness: requests wait for what is read, none for what is written

Job = tuple[Future[None], Callable[[], None]]


class BackgroundThreads:
    def __init__(self, count: int, name: str, niceness: int):
        self._jobs: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._threads = [
            threading.Thread(target=self._run, args=(niceness,), name=f"{name}-{index}", daemon=True)
            for index in range(count)
        ]
        for thread in self._threads:
            thread.start()

    def submit(self, job: Callable[[], None]) -> Future[None]:
        future: Future[None] = Future()
        self._jobs.put((future, job))
        return future

    def close(self, seconds: float) -> None:
        """Wait so long for jobs in flight and in the queue; a thread that takes longer is left to itself."""
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
        return  # a system that knows priorities of processes alone: it works as well
