"""A relay between a judge and a server that records when each byte passed, and the requests made of that.

Bytes are parsed after the run, so that the relay adds little to it. Our load client's own reader counts the tokens.
"""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import cast
from urllib.parse import urlsplit

import httptools

from inflight.bench.answer import Answer
from inflight.bench.http_client import EventStream
from inflight.metrics.observation import Observation

PATHS = ("/v1/completions", "/v1/chat/completions")


@dataclass(frozen=True, slots=True)
class Frame:
    """An event of a stream, when it passed. has_choice: false of those with usage alone."""

    at: float
    text: str
    has_choice: bool = True


@dataclass(frozen=True, slots=True)
class Passed:
    """A generation that passed: our view of it, and the frames of which others make theirs."""

    observation: Observation
    frames: Sequence[Frame] = ()


@dataclass(slots=True)
class Connection:
    """Bytes that passed: (time, bytes) in each direction."""

    sent: list[tuple[float, bytes]] = field(default_factory=list)
    answered: list[tuple[float, bytes]] = field(default_factory=list)


class Relay:
    """Listen on a free port and join each connection with the server; use it in `with`. url: leads to the server."""

    def __init__(self, server_url: str):
        behind = urlsplit(server_url)
        self._server_address = (behind.hostname or "127.0.0.1", behind.port or 80)
        self._connections: list[Connection] = []
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self.url = ""

    def __enter__(self) -> Relay:
        self._thread.start()
        listening = self._loop.create_server(lambda: _NearSide(self._server_address, self._connections), "127.0.0.1", 0)
        self._listener = asyncio.run_coroutine_threadsafe(listening, self._loop).result()
        self.url = f"http://127.0.0.1:{self._listener.sockets[0].getsockname()[1]}"
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._loop.call_soon_threadsafe(self._listener.close)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    def passed(self) -> list[Passed]:
        """Return the generations that passed, by the time of their request."""
        found = [one for connection in self._connections for one in observe(connection)]
        return sorted(found, key=lambda one: one.observation.intended)


class _Side(asyncio.Protocol):
    """One end of a joined connection. What it receives goes to the other end."""

    def __init__(self, passed: list[tuple[float, bytes]]):
        self._passed = passed
        self.transport: asyncio.Transport | None = None
        self.other: _Side | None = None
        self._waiting: list[bytes] = []  # until the other end is connected
        self._ended = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self._passed.append((time.perf_counter(), data))
        if self.other is not None and self.other.transport is not None:
            self.other.transport.write(data)
        else:
            self._waiting.append(data)

    def connection_lost(self, exc: Exception | None) -> None:
        self._ended = True
        if self.other is not None and self.other.transport is not None:
            self.other.transport.close()

    def join(self, other: _Side) -> None:
        """Connect it with the other end, which is open."""
        self.other, other.other = other, self
        assert other.transport is not None
        for data in self._waiting:
            other.transport.write(data)
        self._waiting.clear()
        if self._ended:
            other.transport.close()


class _NearSide(_Side):
    """The judge's end; opens the server's."""

    def __init__(self, server_address: tuple[str, int], connections: list[Connection]):
        self._connection = Connection()
        super().__init__(self._connection.sent)
        connections.append(self._connection)
        self._server_address = server_address

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._opening = asyncio.get_running_loop().create_task(self._open())

    async def _open(self) -> None:
        assert self.transport is not None
        try:
            _, far = await asyncio.get_running_loop().create_connection(
                lambda: _Side(self._connection.answered), *self._server_address
            )
        except OSError:
            self.transport.abort()
        else:
            self.join(far)


class _Requests:
    """Callbacks of the parser of one direction. found: path and time of the first byte of each request."""

    def __init__(self) -> None:
        self.now = 0.0
        self.found: list[tuple[str, float]] = []
        self._began, self._url = 0.0, b""

    def on_message_begin(self) -> None:
        self._began, self._url = self.now, b""

    def on_url(self, part: bytes) -> None:
        self._url += part

    def on_message_complete(self) -> None:
        self.found.append((self._url.decode().partition("?")[0], self._began))


class _Responses:
    """Callbacks of the parser of the other direction. found: status, answer, frames and end of each response."""

    def __init__(self) -> None:
        self.now = 0.0
        self.found: list[tuple[int, Answer, list[Frame], float]] = []
        self.parser: httptools.HttpResponseParser | None = None
        self._open = False

    def on_message_begin(self) -> None:
        self._open = True
        self._answer, self._events, self._whole = Answer(), EventStream(), bytearray()
        self._frames: list[Frame] = []
        self._streamed = False

    def on_header(self, name: bytes, value: bytes) -> None:
        if name.lower() == b"content-type":
            self._streamed = value.startswith(b"text/event-stream")

    def on_body(self, part: bytes) -> None:
        if not self._streamed:
            self._whole += part
            return
        for event in self._events.feed(part):
            self._answer.take(event, self.now)
            if event.startswith(b"{"):
                self._frames.append(_frame(event, self.now))

    def on_message_complete(self) -> None:
        assert self.parser is not None
        if self._whole:
            self._answer.take_whole(bytes(self._whole), self.now)
        self.found.append((self.parser.get_status_code(), self._answer, self._frames, self.now))
        self._open = False

    def end(self) -> None:
        """Count an answer that had ended when the judge closed the connection, before the last bytes of HTTP."""
        if self._open and self._answer.done:
            self.on_message_complete()


def _frame(event: bytes, now: float) -> Frame:
    choices = json.loads(event).get("choices") or ()
    inside = choices[0].get("delta") or choices[0] if choices else {}
    return Frame(now, inside.get("text") or inside.get("content") or "", bool(choices))


def observe(connection: Connection) -> Iterator[Passed]:
    """Yield the generations of a connection. A request is sent when its first byte passes."""
    requests, responses = _Requests(), _Responses()
    _parse(httptools.HttpRequestParser(requests), requests, connection.sent)
    responses.parser = httptools.HttpResponseParser(responses)
    _parse(responses.parser, responses, connection.answered)
    responses.end()
    for index, (path, sent) in enumerate(requests.found):
        if path not in PATHS:
            continue
        if index >= len(responses.found):
            until = connection.answered[-1][0] if connection.answered else sent
            yield Passed(Observation("", sent, until, "unfinished", sent))
            continue
        status, answer, frames, ended = responses.found[index]
        yield Passed(_observation(sent, status, answer, ended), frames)


def _observation(sent: float, status: int, answer: Answer, ended: float) -> Observation:
    problem = _problem(status, answer)
    return Observation(
        request_id=answer.id.partition("-")[2],  # without the kind of answer, as in records
        intended=sent,
        ended=ended,
        outcome="failed" if problem else "completed",
        sent=sent,
        first_token=answer.first_token,
        last_token=answer.last_token,
        token_times=answer.token_times(),
        prompt_tokens=answer.prompt_tokens or 0,
        cached_tokens=answer.cached_tokens,
        output_tokens=answer.output_tokens,
        longest_output=answer.output_tokens,
        status=status,
        error=problem,
    )


def _problem(status: int, answer: Answer) -> str:
    """Return why a request failed; empty where it did not. Tokens without visible text, such as special ones, count."""
    if status != 200:
        return answer.error or f"HTTP {status}"
    return "" if answer.done and answer.output_tokens and not answer.error else answer.problem()


def _parse(
    parser: httptools.HttpRequestParser | httptools.HttpResponseParser,
    callbacks: _Requests | _Responses,
    passed: Sequence[tuple[float, bytes]],
) -> None:
    for callbacks.now, part in passed:
        parser.feed_data(part)
