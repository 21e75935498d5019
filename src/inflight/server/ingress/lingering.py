"""A transport whose end somebody else decides on: uvicorn closes a connection after its answer as soon as the answer is
written, and a client that is still sending would see a reset instead of it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


class Lingering:
    """What uvicorn's cycle uses of a transport."""

    __slots__ = ("_transport", "close")

    def __init__(self, transport: asyncio.Transport, close: Callable[[], None]):
        self._transport = transport
        self.close = close

    def write(self, data: bytes) -> None:
        self._transport.write(data)

    def is_closing(self) -> bool:
        return self._transport.is_closing()
