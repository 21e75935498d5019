"""The socket between the engine's process and an API process: messages both ways, on an event loop.

Knows nothing of what they say. Nothing in it waits for the other side to read: what that has not taken is kept.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Callable
from typing import Generic, TypeVar

from msgspec import Struct

from inflight.server.processes.frames import frame, next_frame
from inflight.server.processes.messages import encode

Heard = TypeVar("Heard")


class Control(Generic[Heard]):
    """One end. Lives in one event loop, from `listen` on."""

    def __init__(self, end: socket.socket, decode: Callable[[bytes], Heard]):
        """decode: raises ValueError where the bytes are no message."""
        self._end, self._decode = end, decode
        self._untold: list[bytes] = []  # before anybody listens
        self._writer: asyncio.StreamWriter | None = None

    def send(self, message: Struct) -> None:
        """At once. Who has ended hears nothing."""
        self.send_encoded(encode(message))

    def send_encoded(self, message: bytes) -> None:
        framed = frame(message)
        if self._writer is None:
            self._untold.append(framed)
        elif not self._writer.is_closing():
            self._writer.write(framed)

    async def listen(self, heard: Callable[[Heard], None]) -> None:
        """Until the other side closes its end. Raises ValueError where it says what is no message."""
        self._end.setblocking(False)
        reader, self._writer = await asyncio.open_unix_connection(sock=self._end)
        self._writer.writelines(self._untold)
        self._untold.clear()
        with contextlib.suppress(OSError, EOFError):
            while True:
                heard(self._decode(await next_frame(reader)))

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()

    def discard(self) -> None:
        """Where nobody has listened."""
        self._end.close()
