"""The socket between two of the server's processes, with typed messages both ways, and a process at its other end.

A message is its msgpack behind its length, four bytes. Sending does not wait: what the other side has not read is
buffered.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Generic, TypeVar

from msgspec import Struct

from inflight.limited_process import LENGTH_BYTES
from inflight.server.processes.messages import encode

Heard = TypeVar("Heard")


class Control(Generic[Heard]):
    """One end. Lives in one event loop, from `listen` on."""

    def __init__(self, end: socket.socket, decode: Callable[[bytes], Heard]):
        """decode: raises ValueError for bytes that are no message."""
        self._end, self._decode = end, decode
        self._unsent: list[bytes] = []  # before `listen`
        self._writer: asyncio.StreamWriter | None = None

    def send(self, message: Struct) -> None:
        """Send a message, without waiting; a process that has ended gets none."""
        self.send_encoded(encode(message))

    def send_encoded(self, message: bytes) -> None:
        framed = len(message).to_bytes(LENGTH_BYTES, "big") + message
        if self._writer is None:
            self._unsent.append(framed)
        elif not self._writer.is_closing():
            self._writer.write(framed)

    async def listen(self, heard: Callable[[Heard], None]) -> None:
        """Take messages until the other side closes its end. Raises ValueError for bytes that are no message."""
        self._end.setblocking(False)
        reader, self._writer = await asyncio.open_unix_connection(sock=self._end)
        self._writer.writelines(self._unsent)
        self._unsent.clear()
        with contextlib.suppress(OSError, EOFError):
            while True:
                length = int.from_bytes(await reader.readexactly(LENGTH_BYTES), "big")
                heard(self._decode(await reader.readexactly(length)))

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()

    def discard(self) -> None:
        """Close an end whose `listen` was never called."""
        self._end.close()


class ControlledProcess(Generic[Heard]):
    """A process that is started with the other end of a control socket."""

    def __init__(
        self,
        module: str,
        decode: Callable[[bytes], Heard],
        inherited: Sequence[int],
        environment: Mapping[str, str] | None = None,
    ):
        """Start the process.

        Args:
            module: Its program, which is given the number of the socket's descriptor.
            decode: As `Control` has it.
            inherited: Further descriptors.
            environment: None: this process's.
        """
        ours, theirs = socket.socketpair()
        command = [sys.executable, "-m", module, str(theirs.fileno())]
        with theirs:
            descriptors = (theirs.fileno(), *inherited)
            self._process = subprocess.Popen(command, pass_fds=descriptors, stdin=subprocess.DEVNULL, env=environment)
        self._control = Control(ours, decode)

    @property
    def is_alive(self) -> bool:
        return self._process.poll() is None

    def kill(self) -> None:
        self._process.kill()
