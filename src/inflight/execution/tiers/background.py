"""Threads of a tier: they work where the steps leave cores idle, and one that hangs keeps nobody from ending.

Knows the system's priorities and futures; nothing of blocks.
"""

from __future__ import annotations

import os
import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future

READING, WRITING = 5, 19  # niceness: somebody waits for what is read, nobody for what is written

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
        """Waits so long for what is under way and what waits; a thread that takes longer is left to itself."""
        for _ in self._threads:
            self._jobs.put(None)
        for thread in self._threads:
            thread.join(seconds / len(self._threads))

    def _run(self, niceness: int) -> None:
        _give_way(niceness)
        while (job := self._jobs.get()) is not None:
            future, call = job
            try:
                call()
            except BaseException as fault:  # whoever asked is told
                future.set_exception(fault)
            else:
                future.set_result(None)


def _give_way(niceness: int) -> None:
    try:
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), niceness)
    except (AttributeError, OSError):
        return  # a system that knows priorities of processes alone: it works as well
