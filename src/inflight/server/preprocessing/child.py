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
import socket
import struct
import sys
from collections.abc import Awaitable
from pathlib import Path
from typing import NamedTuple, TypeVar

from inflight.limited_process import LENGTH_BYTES
from inflight.server.call import EndpointName
from inflight.server.preprocessing.wire import job_frame

LOOK_SECONDS = 1.0  # between two looks at a process's CPU time
STALLED_LOOKS = 10  # in a row without any; then the process stands still
MAX_LOOKS = 300  # at a process with one job, whatever its CPU time says

_CREDENTIALS = struct.Struct("3i")  # process, user, group

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

    def __init__(self, pid: int | None, reader: asyncio.StreamReader, writer: asyncio.StreamWriter):
        """pid: None where the system does not say which process is at the other end of a socket."""
        self.pid = pid
        self._reader, self._writer = reader, writer

    @classmethod
    async def introduced(cls, ours: socket.socket) -> ReadingProcess:
        """Return the process at the other end of `ours` once it has sent its first byte. Raises EOFError, OSError."""
        pid = await _sender(ours)
        return cls(pid, *await asyncio.open_unix_connection(sock=ours))

    @property
    def has_ended(self) -> bool:
        return self._reader.at_eof()

    async def read(self, job: ReadJob) -> bytes:
        """Return the process's answer. Raises EOFError where the process ends, StalledError where it stands still."""
        return await progressing(self._answer(job), self.pid)

    def end(self) -> None:
        """End the process, also one that is stopped, which would not see its socket close."""
        if self.pid is not None and not self.has_ended:  # while the socket is open, its process has this id
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)
        self._writer.transport.abort()

    async def _answer(self, job: ReadJob) -> bytes:
        for piece in job_frame(*job):
            self._writer.write(piece)
        await self._writer.drain()
        length = int.from_bytes(await self._reader.readexactly(LENGTH_BYTES), "big")
        return await self._reader.readexactly(length)


def attested_pair() -> tuple[socket.socket, socket.socket]:
    """Return two connected sockets; who sends into the second is attested by the kernel at the first, where it can.

    The id decides which process is killed, so that it must not be the word of a process that runs a model's template.
    """
    ours, theirs = socket.socketpair()
    if sys.platform == "linux":
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
    ours.setblocking(False)
    return ours, theirs


async def progressing(work: Awaitable[T], pid: int | None) -> T:
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


async def _sender(ours: socket.socket) -> int | None:
    """Take the first byte that comes, and return the id of the process that sent it. Raises EOFError, OSError."""
    loop = asyncio.get_running_loop()
    came = asyncio.Event()
    loop.add_reader(ours.fileno(), came.set)
    try:
        await came.wait()
    finally:
        loop.remove_reader(ours.fileno())
    data, attested, _, _ = ours.recvmsg(1, socket.CMSG_SPACE(_CREDENTIALS.size))
    if not data:
        raise EOFError
    if sys.platform == "linux":
        for level, kind, content in attested:
            if (level, kind) == (socket.SOL_SOCKET, socket.SCM_CREDENTIALS):
                pid: int = _CREDENTIALS.unpack(content[: _CREDENTIALS.size])[0]
                return pid
    return None


def _cpu_ticks(pid: int | None) -> int | None:
    """Return the CPU time that a process has used. None where the system does not report it."""
    if pid is None:
        return None
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace").rpartition(")")[2].split()
    except OSError:
        return None
    return int(fields[11]) + int(fields[12])
