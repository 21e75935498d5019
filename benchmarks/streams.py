"""A lean HTTP client: it writes a request, counts the frames that come back and notes when, and parses nothing.

It shares the machine's cores with the server that it measures, so that what it does itself counts against the server.
"""

from __future__ import annotations

import asyncio
import json
import re
import socket
import time
from collections.abc import Awaitable, Mapping, Sequence
from typing import Any, TypeVar, cast

import uvloop

T = TypeVar("T")
HOST = "127.0.0.1"
_TEXTS = re.compile(rb'"text":"((?:[^"\\]|\\.)*)"')


def run(work: Awaitable[T]) -> T:
    async def awaited() -> T:
        return await work

    return uvloop.run(awaited())


def post(path: str, body: Mapping[str, Any]) -> bytes:
    """A request as it goes over the wire; encoded before anything is measured."""
    content = json.dumps(body).encode()
    head = (
        f"POST {path} HTTP/1.1\r\nHost: {HOST}\r\nContent-Type: application/json\r\nConnection: close\r\n"
        f"Content-Length: {len(content)}\r\n\r\n"
    )
    return head.encode() + content


class Stream(asyncio.Protocol):
    """One request and what comes of it. Times are seconds of time.perf_counter.

    status: 0 until the server has answered. arrivals: when tokens came, one time for all that came together. frames:
    `data: ` events, [DONE] among them. ended: when the connection closed. text: of the frames, as written in JSON.
    """

    def __init__(self, request: bytes, *, pause: float = 0.0, leave_after: int | None = None, keep: bool = False):
        """pause: seconds for which the client reads nothing after each piece. leave_after: frames after which it goes
        away. keep: whether the bytes are kept, for `text` and `body`."""
        self._request = request
        self._pause = pause
        self._leave_after = leave_after
        self._kept: list[bytes] | None = [] if keep else None
        self._last = b""
        self.sent = 0.0
        self.status = 0
        self.answered = 0.0
        self.frames = 0
        self.arrivals: list[float] = []
        self.ended = 0.0
        self.closed: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        if self._pause:  # as little as may lie between a slow reader and the server
            transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        self._transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        now = time.perf_counter()
        if not self.status:
            self.status, self.answered = int(data[9:12]), now
        frames = data.count(b"data: ")
        if frames:
            self.frames += frames
            self.arrivals.append(now)
            if self._leave_after is not None and self.frames >= self._leave_after:
                self.leave()
        if self._kept is not None:
            self._kept.append(data)
        self._last = self._last[-32:] + data[-64:]
        if self._pause and self.status == 200:
            self._transport.pause_reading()
            asyncio.get_running_loop().call_later(self._pause, self._read_on)

    def connection_lost(self, error: Exception | None) -> None:
        self.ended = time.perf_counter()
        if not self.closed.done():
            self.closed.set_result(None)

    def leave(self) -> None:
        """Go away without a word."""
        self._transport.abort()

    def _read_on(self) -> None:
        if not self._transport.is_closing():
            self._transport.resume_reading()

    @property
    def complete(self) -> bool:
        """Return whether an answer came to its end, with an error in it or not: streams end with [DONE]."""
        return self.status == 200 and b"data: [DONE]" in self._last

    @property
    def ttft(self) -> float | None:
        """Seconds from sending to the first token; None where none came."""
        return self.arrivals[0] - self.sent if self.arrivals and self.status == 200 else None

    @property
    def gaps(self) -> list[float]:
        """Seconds between pieces with tokens. The last piece ([DONE]) may come by itself, and is none."""
        return [later - earlier for earlier, later in zip(self.arrivals, self.arrivals[1:-1], strict=False)]

    @property
    def body(self) -> bytes:
        return b"".join(self._kept or ())

    @property
    def text(self) -> bytes:
        return b"".join(_TEXTS.findall(self.body))


async def send(port: int, stream: Stream, due: float | None = None) -> Stream:
    """Opens the connection and waits for its end; where there is no connection to be had, the status stays 0.

    due: the intended time, from which the request's clock runs.
    """
    stream.sent = time.perf_counter() if due is None else due
    try:
        await asyncio.get_running_loop().create_connection(lambda: stream, HOST, port)
    except ConnectionError:
        stream.ended = time.perf_counter()
    else:
        await stream.closed
    return stream


async def send_all(port: int, requests: Sequence[bytes]) -> list[Stream]:
    """All at once, each over a connection of its own."""
    return list(await asyncio.gather(*(send(port, Stream(request)) for request in requests)))
