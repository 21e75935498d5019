"""One request over HTTP with its outcome, and the times of its bytes: when the event loop reads them, not when a task
handles them."""

from __future__ import annotations

import asyncio
import errno
import io
import json
import os
import re
import time
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from typing import cast

import aiohttp
from aiohttp.connector import Connection

from inflight.bench.answer import Answer, message, shown
from inflight.bench.client_types import Target
from inflight.counted import counted
from inflight.metrics.observation import Outcome


class TimestampingProtocol(asyncio.Protocol):
    """A protocol around another. received_at: when the last bytes came, on time.perf_counter. content: of the current
    response, whose reader gets an exception when the connection is lost: aiohttp leaves it waiting where it closed the
    connection itself because a chunk was not HTTP."""

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
            self.content.set_exception(aiohttp.ClientPayloadError("the data is not HTTP"))

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
        """Return the time on time.perf_counter."""
        return self._timestamps.received_at if self._timestamps is not None else time.perf_counter()


_BUSY = (429, 503)
_KEEP_ALIVE_S = 4.0  # shorter than the five seconds after which many servers close what is idle, even while we write
MAX_ANSWER_BYTES = 16 << 20  # of an answer that is not streamed
MAX_ERROR_BYTES = 1 << 16  # of an error's body; more is not read
_LARGE = 1 << 20  # aiohttp warns of plain bytes above it
_FIELDS = (b"event", b"id", b"retry")
MAX_EVENT_BYTES = 1 << 20  # of a line, and of all lines of an event


@dataclass(frozen=True, slots=True)
class Reply:
    """The outcome of a request. retry_after: seconds, where the server sent them. error: a sentence if it failed."""

    outcome: Outcome
    status: int = 0
    error: str = ""
    retry_after: float | None = None


def open_session(target: Target) -> aiohttp.ClientSession:
    """Open a session with unlimited kept-alive connections, one DNS look-up, no cookies and no compression."""
    connector = aiohttp.TCPConnector(limit=0, ttl_dns_cache=None, keepalive_timeout=_KEEP_ALIVE_S)
    headers = {
        "Content-Type": "application/json",
        "Accept-Encoding": "identity",
        "User-Agent": "inflight-bench",
        **target.headers,
    }
    return aiohttp.ClientSession(
        connector=connector,
        headers=headers,
        cookie_jar=aiohttp.DummyCookieJar(),
        auto_decompress=False,
        response_class=TimestampedResponse,
    )


class CompletionClient:
    """Sends requests to one target. begin: of the answers' times, on time.perf_counter."""

    def __init__(self, session: aiohttp.ClientSession, target: Target, begin: float):
        self._session = session
        self._target = target
        self._url = target.url.rstrip("/") + target.path
        self._begin = begin

    async def ask(self, body: bytes, answer: Answer, patience: float) -> Reply:
        """Send a request. patience: seconds until it has failed. Received data stays in `answer` in any case."""
        # A total of 0 would mean no timeout.
        timeout = aiohttp.ClientTimeout(total=max(patience, 0.001), sock_connect=self._target.connect_timeout_s)
        data = body if len(body) < _LARGE else io.BytesIO(body)
        status = 0
        try:
            async with self._session.post(self._url, data=data, timeout=timeout, allow_redirects=False) as response:
                status = response.status
                if status != 200:
                    return await _refusal(response)
                await self._read(cast(TimestampedResponse, response), answer)
        except (aiohttp.ClientError, OSError) as problem:  # timeouts among them
            if not answer.done or answer.error:
                return Reply("failed", status, self._why(problem, answer))
        error = answer.problem()
        return Reply("failed" if error else "completed", status, error)

    async def _read(self, response: TimestampedResponse, answer: Answer) -> None:
        content, begin = response.content, self._begin
        if response.content_type == "application/json":
            whole = await _read(content, MAX_ANSWER_BYTES)
            if len(whole) > MAX_ANSWER_BYTES:
                answer.error = f"The server sent an answer of more than {MAX_ANSWER_BYTES:,} bytes."
            else:
                answer.take_whole(whole, response.received_at - begin)
            return
        events, now = EventStream(), 0.0
        while data := await content.readany():
            now = response.received_at - begin
            for event in events.feed(data):
                answer.take(event, now)
            if events.stray is not None and not answer.tokens and not answer.error:
                answer.error = f"The server sent neither server-sent events nor JSON: {shown(events.stray)}"
            if events.is_too_long and not answer.error:
                answer.error = f"The server sent an event of more than {MAX_EVENT_BYTES:,} bytes."
            if answer.error:
                return  # the connection is closed, for there is more to come
        for event in events.close():
            answer.take(event, now)

    def _why(self, problem: Exception, answer: Answer) -> str:
        if isinstance(problem, aiohttp.ConnectionTimeoutError):
            return f"No connection within {self._target.connect_timeout_s:g} s."
        if isinstance(problem, TimeoutError):
            return f"No end within {self._target.timeout_s:g} s, after {counted(answer.tokens, 'token')}."
        if isinstance(problem, aiohttp.ClientConnectorError):
            return f"No connection: {refusal(problem)}."
        if isinstance(problem, aiohttp.ClientResponseError):
            return f"The answer is not HTTP: {problem.message}"
        when = f"after {counted(answer.tokens, 'token')}" if answer.tokens else "before the first token"
        return f"The connection broke off {when}: {_plain(problem)}."


def refusal(problem: aiohttp.ClientConnectorError) -> str:
    """Return why there is no connection, as the system reports it."""
    number = problem.os_error.errno
    return os.strerror(number) if number is not None and number > 0 else str(problem.os_error)


def _plain(problem: Exception) -> str:
    """Return the cause without the names of aiohttp's classes around it."""
    if getattr(problem, "errno", None) == errno.ECONNRESET or "ConnectionResetError" in str(problem):
        return "it was reset"
    if isinstance(problem, aiohttp.ServerDisconnectedError):
        return "the server closed it"
    if isinstance(problem, aiohttp.ClientPayloadError) and "not completed" in str(problem):
        return "the server closed it within the answer"
    return str(problem) or type(problem).__name__


async def _read(content: aiohttp.StreamReader, limit: int) -> bytes:
    """Return a body to its end, or up to the piece with which it exceeds `limit` bytes."""
    body = bytearray()
    while len(body) <= limit and (data := await content.readany()):
        body += data
    return bytes(body)


async def _refusal(response: aiohttp.ClientResponse) -> Reply:
    status, body = response.status, await _read(response.content, MAX_ERROR_BYTES)
    try:
        said = message(json.loads(body))
    except (ValueError, AttributeError, RecursionError):
        said = shown(body)
    outcome: Outcome = "rejected" if status in _BUSY else "failed"
    return Reply(outcome, status, f"HTTP {status}: {said}", retry_after(response) if status in _BUSY else None)


def retry_after(response: aiohttp.ClientResponse) -> float | None:
    """Return the seconds of Retry-After, which holds seconds or a date (RFC 9110, 10.2.3). A date is compared with the
    server's own `Date`, since this machine's wall clock may differ."""
    value = response.headers.get("Retry-After", "").strip()
    if re.fullmatch(r"\d+(\.\d+)?", value):
        return float(value)
    try:
        wait = parsedate_to_datetime(value) - parsedate_to_datetime(response.headers["Date"])
        return max(wait.total_seconds(), 0.0)
    except (KeyError, TypeError, ValueError):
        return None


class EventStream:
    """stray: the first line that belongs to no event stream. is_too_long: an event exceeds MAX_EVENT_BYTES, and the
    rest of the stream is dropped."""

    def __init__(self) -> None:
        self._rest = b""  # the beginning of a line
        self._data: list[bytes] = []  # of the event that has begun
        self._data_bytes = 0
        self.stray: bytes | None = None
        self.is_too_long = False

    def feed(self, data: bytes) -> list[bytes]:
        """Return the data of each event that the bytes complete."""
        if self.is_too_long:
            return []
        if self._rest:
            data = self._rest + data
        held = b""
        if b"\r" in data:
            if data.endswith(b"\r"):  # perhaps half of a line's end
                data, held = data[:-1], b"\r"
            data = data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        *lines, rest = data.split(b"\n")
        self._rest = rest + held
        events = []
        for line in lines:
            if line.startswith(b"data:"):
                self._data.append(line[6:] if line.startswith(b"data: ") else line[5:])
                self._data_bytes += len(line)
            elif line:
                self._note(line)
            elif self._data:
                events.append(self._data[0] if len(self._data) == 1 else b"\n".join(self._data))
                self._data, self._data_bytes = [], 0
        if len(self._rest) + self._data_bytes > MAX_EVENT_BYTES:
            if not self._rest.startswith(b"data:"):
                self._note(self._rest)
            self.is_too_long, self._rest, self._data = True, b"", []
        return events

    def close(self) -> list[bytes]:
        """Return the last event, where the stream ended without the empty line after it. The specification drops it,
        but some servers end with their last frame."""
        return self.feed(b"\n\n") if self._rest or self._data else []

    def _note(self, line: bytes) -> None:
        if self.stray is None and not line.startswith(b":") and line.partition(b":")[0] not in _FIELDS:
            self.stray = line
