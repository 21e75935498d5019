"""Processes that work for another one and limit themselves: frames on a socket, memory, CPU time, a silent stderr."""

from __future__ import annotations

import contextlib
import os
import resource
import socket
import sys
from pathlib import Path

LENGTH_BYTES = 4  # of a frame's length, before it


def send(to: socket.socket, frame: bytes) -> None:
    """Send one frame whole. Raises OSError where the other side has closed."""
    to.sendall(len(frame).to_bytes(LENGTH_BYTES, "big"))
    to.sendall(frame)


def receive(source: socket.socket) -> bytearray:
    """Return the next frame. Raises EOFError where the other side has closed."""
    return _exactly(source, int.from_bytes(_exactly(source, LENGTH_BYTES), "big"))


def limit_memory(more: int) -> None:
    """Refuse this process more than so many bytes beyond its address space; only on Linux, which counts it."""
    if sys.platform == "linux":
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
        limit = pages * resource.getpagesize() + more
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))


def resident_bytes() -> int:
    """Return the memory of this process; 0 where the system has no such file."""
    if sys.platform != "linux":
        return 0
    return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * resource.getpagesize()


def cpu_ticks(pid: int) -> int | None:
    """Return the CPU time that another process has used, in ticks; None where the system does not report it."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace").rpartition(")")[2].split()
    except OSError:
        return None
    return int(fields[11]) + int(fields[12])


def end_before_others() -> None:
    """Have the system end this process first where memory is short in spite of all limits: it can be made anew."""
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("800", encoding="ascii")


def silence_stderr() -> None:
    """Drop lines that libraries write of their own, about memory that they were refused: the log is the server's."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)
    os.close(nowhere)


def _exactly(source: socket.socket, length: int) -> bytearray:
    data = bytearray(length)
    view, have = memoryview(data), 0
    while have < length:
        read = source.recv_into(view[have:])
        if not read:
            raise EOFError
        have += read
    return data
