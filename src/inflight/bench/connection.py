"""When bytes came, noted as the event loop reads them and not when somebody gets round to them.

Knows asyncio's transports and aiohttp's hook for responses; not what the bytes are.
"""

from __future__ import annotations

import asyncio
import time
from typing import cast

import aiohttp
from aiohttp.connector import Connection


class TimestampingProtocol(asyncio.Protocol):
    """Stands between a transport and its protocol. received_at: when the last bytes came, on time.perf_counter.
    content: of the response under way, whose reader is told when the connection is lost: aiohttp leaves it waiting
    where it closed the connection itself because a chunk was not HTTP."""

    def __init__(self, inner: asyncio.Protocol):
        self._inner = inner
        self._take = inner.data_received
        self.received_at = 0.0
        self.content: aiohttp.StreamReader | None = None

    def data_received(self, data: bytes) -> None:
        self.received_at = time.perf_counter()
        self._take(data)

    def eof_received(self) -> bool | None:
        return self._inner.eof_received()

    def connection_lost(self, exc: Exception | None) -> None:
        self._inner.connection_lost(exc)
        if self.content is not None and not self.content.is_eof() and self.content.exception() is None:
            self.content.set_exception(aiohttp.ClientPayloadError("what came is not HTTP"))

    def pause_writing(self) -> None:
        self._inner.pause_writing()

    def resume_writing(self) -> None:
        self._inner.resume_writing()


class TimestampedResponse(aiohttp.ClientResponse):
    """A response that knows when the last of its bytes were read."""

    _timestamps: TimestampingProtocol | None = None

    async def start(self, connection: Connection) -> aiohttp.ClientResponse:
        transport = cast(asyncio.Transport, connection.transport)
        if transport is not None:
            protocol = transport.get_protocol()
            if not isinstance(protocol, TimestampingProtocol):
                protocol = TimestampingProtocol(cast(asyncio.Protocol, protocol))
                transport.set_protocol(protocol)
            self._timestamps = protocol
        await super().start(connection)
        if self._timestamps is not None:
            self._timestamps.content = self.content
        return self

    @property
    def received_at(self) -> float:
        """On time.perf_counter."""
        return self._timestamps.received_at if self._timestamps is not None else time.perf_counter()
