"""Processes that read bodies, as the server sees them: each one's socket, and the queue of bodies before them.

A process that runs away ends itself by its limits. One that is stopped, or waits for a lock that is never released,
cannot; it is found by its CPU time, which does not grow. A busy machine slows a process down, but leaves it some CPU
time every second.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from inflight.engine.event_stream import set_outcome
from inflight.limited_process import LENGTH_BYTES
from inflight.server.preprocessing.worker import RENEW, job_frame

LOOK_SECONDS = 1.0  # between two looks at a process's CPU time
STALLED_LOOKS = 10  # in a row without any CPU time; then the process has stalled
MAX_LOOKS = 300  # at a process with one job, whatever its CPU time says

T = TypeVar("T")


class PreprocessingError(RuntimeError):
    """The processes cannot be started; the sentence says why."""


class StalledError(RuntimeError):
    """The process makes no progress."""


class ProcessEnded(EOFError):
    """A body ended the process that read it. seconds: from its begin."""

    def __init__(self, seconds: float):
        super().__init__()
        self.seconds = seconds


class ReadingProcess:
    """A connection to one child of the process that forks."""

    def __init__(self, pid: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter):
        self.pid = pid
        self._reader, self._writer = reader, writer

    @property
    def has_ended(self) -> bool:
        return self._reader.at_eof()

    async def read(self, endpoint: str, body: bytes, history: bytes) -> bytes:
        """Return the process's answer. Raises EOFError where the process ends, StalledError where it stalls."""
        return await progressing(self._answer(endpoint, body, history), self.pid)

    def end(self) -> None:
        """End the process, also one that is stopped, which would not see its socket close."""
        if not self.has_ended:  # while the socket is open, its process has this id
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)
        self._writer.transport.abort()

    async def _answer(self, endpoint: str, body: bytes, history: bytes) -> bytes:
        for piece in job_frame(endpoint, body, history):
            self._writer.write(piece)
        await self._writer.drain()
        length = int.from_bytes(await self._reader.readexactly(LENGTH_BYTES), "big")
        return await self._reader.readexactly(length)


async def progressing(work: Awaitable[T], pid: int) -> T:
    """Return the work's result. Raises StalledError where process `pid`, which does it, uses no CPU time."""
    task = asyncio.ensure_future(work)
    try:
        still, last = 0, _cpu_ticks(pid)
        for _ in range(MAX_LOOKS):
            await asyncio.wait((task,), timeout=LOOK_SECONDS)
            if task.done():
                return task.result()
            used = _cpu_ticks(pid)
            still = still + 1 if used is not None and used == last else 0
            if still >= STALLED_LOOKS:
                break
            last = used
        raise StalledError
    finally:
        task.cancel()
        await asyncio.wait((task,))


def _cpu_ticks(pid: int) -> int | None:
    """Return the CPU time that a process has used. None where the system does not report it."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace").rpartition(")")[2].split()
    except OSError:
        return None
    return int(fields[11]) + int(fields[12])


@dataclass(slots=True, eq=False)
class WaitingBody:
    """A body to be read, for the client that awaits `outcome`; done also where the client has left."""

    owner: str
    endpoint: str
    body: bytes
    history: bytes
    outcome: asyncio.Future[bytes] = field(default_factory=lambda: asyncio.get_running_loop().create_future())


class Lane:
    """Processes that read one body at a time each. Owners take turns: no body waits behind all that another owner has
    sent. Bodies whose client has left are skipped."""

    def __init__(
        self,
        start: Callable[[], Awaitable[ReadingProcess]],
        was_orphaned: Callable[[], Awaitable[bool]],
        processes: int,
    ):
        """Start processes when there are bodies for them.

        Args:
            start: Returns a fresh process. Raises PreprocessingError, StalledError, OSError, EOFError.
            was_orphaned: Returns whether a process ended with the one that forks, which says nothing about its body.
            processes: At work at once, at most.
        """
        self._start, self._was_orphaned = start, was_orphaned
        self._waiting: dict[str, deque[WaitingBody]] = {}  # by owner; the one whose turn is next comes first
        self._processes: list[ReadingProcess | None] = [None] * processes
        self._idle = list(range(processes))[::-1]  # the last is taken next: what was never needed is not started
        self._tasks: set[asyncio.Task[None]] = set()

    def put(self, waiting: WaitingBody) -> None:
        """Queue a body."""
        self._waiting.setdefault(waiting.owner, deque()).append(waiting)
        if self._idle:
            task = asyncio.ensure_future(self._work(self._idle.pop()))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    def close(self) -> None:
        """Cancel the bodies that wait, and end the processes."""
        for task in self._tasks:
            task.cancel()
        while (waiting := self._take()) is not None:
            waiting.outcome.cancel()
        for slot in range(len(self._processes)):
            self._drop(slot)

    def _take(self) -> WaitingBody | None:
        """Remove and return the next body; None when no client waits."""
        while self._waiting:
            owner = next(iter(self._waiting))
            bodies = self._waiting.pop(owner)
            first = bodies.popleft()
            if bodies:
                self._waiting[owner] = bodies
            if not first.outcome.done():
                return first
        return None

    async def _work(self, slot: int) -> None:
        """Read bodies until none waits, in one process after another."""
        try:
            while (waiting := self._take()) is not None:
                try:
                    set_outcome(waiting.outcome, await self._outcome(slot, waiting))
                finally:
                    waiting.outcome.cancel()  # where the lane was closed meanwhile
                    del waiting  # megabytes, until the next one comes
        finally:
            self._idle.append(slot)

    async def _outcome(self, slot: int, waiting: WaitingBody) -> bytes | Exception:
        """Return an encoded outcome; or ProcessEnded where the body ended its process, StalledError where two processes
        stalled, PreprocessingError where none can be started."""
        fault: Exception = StalledError()
        for _ in range(2):
            began = time.monotonic()
            try:
                return await self._read(slot, waiting)
            except StalledError as error:
                self._drop(slot)
                fault = error
            except PreprocessingError as error:
                return error
            except (OSError, EOFError):
                self._drop(slot)
                fault = ProcessEnded(time.monotonic() - began)
                if not await self._was_orphaned():
                    break
        return fault

    async def _read(self, slot: int, waiting: WaitingBody) -> bytes:
        process = self._processes[slot]
        if process is not None and process.has_ended:  # since the last body
            self._drop(slot)
        process = self._processes[slot] = self._processes[slot] or await self._start()
        answer = await process.read(waiting.endpoint, waiting.body, waiting.history)
        if answer[:1] == RENEW:
            self._drop(slot)
        return answer[1:]

    def _drop(self, slot: int) -> None:
        """End a process; the next body gets a fresh one."""
        process, self._processes[slot] = self._processes[slot], None
        if process is not None:
            process.end()
