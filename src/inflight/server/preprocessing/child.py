"""One process that reads bodies, as the server sees it: the socket for its jobs, its id and its CPU time.

A process that runs away ends itself by its limits. One that stands still (stopped, or waiting for a lock that is never
released) cannot; it is found by its CPU time, which does not grow. A busy machine slows a process down, but leaves it
some CPU time every second.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Awaitable
from pathlib import Path
from typing import NamedTuple, TypeVar

from inflight.limited_process import LENGTH_BYTES
from inflight.server.call import EndpointName
from inflight.server.preprocessing.wire import job_frame

LOOK_SECONDS = 1.0  # between two looks at a process's CPU time
STALLED_LOOKS = 10  # in a row without any; then the process stands still
MAX_LOOKS = 300  # at a process with one job, whatever its CPU time says

T = TypeVar("T")


class StalledError(RuntimeError):
    """The process makes no progress."""


class ReadJob(NamedTuple):
    """A body to be read. history: where answers are stored, the items that come before it, as JSON."""

    endpoint: EndpointName
    body: bytes
    history: bytes


class ReadingProcess:
    """A connection to one child of the process that forks."""

    def __init__(self, pid: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter):
        self.pid = pid
        self._reader, self._writer = reader, writer

    @property
    def has_ended(self) -> bool:
        return self._reader.at_eof()

    async def read(self, job: ReadJob) -> bytes:
        """Return the process's answer. Raises EOFError where the process ends, StalledError where it stands still."""
        return await progressing(self._answer(job), self.pid)

    def end(self) -> None:
        """End the process, also one that is stopped, which would not see its socket close."""
        if not self.has_ended:  # while the socket is open, its process has this id
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)
        self._writer.transport.abort()

    async def _answer(self, job: ReadJob) -> bytes:
        for piece in job_frame(*job):
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
