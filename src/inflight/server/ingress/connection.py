"""One connection: uvicorn's HTTP protocol with limits that hold while a request arrives, before it is kept anywhere.

Knows bytes, headers and time; whom to admit, `Connections` knows. uvicorn parses and answers; here stands what it does
not do: sizes of URL and headers, a deadline for them, a bound on pipelined requests, bodies taken piece by piece as
they are asked for, refusals that the client can read, upgrades ignored without losing the body, a quiet end.
"""

from __future__ import annotations

import asyncio
import json
import time
import weakref
from collections.abc import Callable
from typing import Any, cast

import httptools
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

from inflight.server.errors import ApiError
from inflight.server.ingress.connections import Connections
from inflight.server.ingress.pace import GULP_BYTES

_MOST_PIPELINED = 8  # requests that wait for the answers before theirs
_LINGER_SECONDS = 2.0  # for a client to read why it was refused
_LAST_SECONDS = 1.5  # at shutdown: for an answer that is being sent; uvicorn waits 2 s before it makes noise


class Connection(HttpToolsProtocol):
    def __init__(self, *, connections: Connections, **of_uvicorn: Any):
        self._chunks: list[bytes] = []  # of the body, as the parser cuts them; not yet the cycle's
        super().__init__(**of_uvicorn)
        self._connections = connections
        self._limits = connections.limits
        self._refusal: ApiError | None = None  # why the parser was stopped
        self._deaf = False  # what still comes is thrown away
        self._in_head = False
        self._head_bytes = 0  # of the URL, names and values so far
        self._pending = 0  # bytes that have come, and that nobody has been given yet
        self._given = 0  # bytes of the chunk that is being parsed that somebody was given
        self._parse_seconds = 0.0  # of what came last
        self._upgrading = False
        self._late: asyncio.TimerHandle | None = None
        self._closing: asyncio.TimerHandle | None = None
        self._running: RequestResponseCycle | None = None  # uvicorn's `cycle` is the newest, of pipelined ones the last

    # -- its life -------------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        why = self._connections.admit(self, self.client[0] if self.client else "")
        if why is not None:
            self._deaf = True
            sentence = f"{why}; try again in 1 s."
            self._write(ApiError(503, sentence, type="server_error", code="too_many_connections", retry_after=1.0))
            self._close(_LINGER_SECONDS)
            return
        self.timeout_keep_alive_task = self.loop.call_later(self.timeout_keep_alive, self.timeout_keep_alive_handler)

    def connection_lost(self, exc: Exception | None) -> None:
        self._connections.discard(self)
        self._unset_keepalive_if_required()
        for timer in (self._late, self._closing):
            if timer is not None:
                timer.cancel()
        running = self._running
        if running is not None and not running.response_complete:
            running.disconnected = True
            running.message_event.set()
        super().connection_lost(exc)
        # Its calls go on without it; together they would be garbage that only a whole collection finds.
        self.cycle = self._running = self.scope = None  # type: ignore[assignment]
        self.pipeline.clear()

    def give_way(self) -> None:
        self._deaf = True
        self.transport.abort()

    def shutdown(self) -> None:
        """The server ends: what carries no call is closed now, an answer that is being sent has a moment."""
        if not self._answering or self.cycle.more_body:
            self.transport.abort()
            return
        self.cycle.keep_alive = False
        self._closing = self.loop.call_later(_LAST_SECONDS, self.transport.abort)

    @property
    def _answering(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    # -- bytes come -----------------------------------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        if self._deaf:
            if not self._connections.may_throw_away(len(data)):
                self.flow.pause_reading()
            return
        self._given, size, began = 0, len(data), time.perf_counter()
        while data and not self._deaf:
            data = self._feed(data)
        self._parse_seconds = time.perf_counter() - began
        if self._deaf:
            return
        if self._in_head or (self._answering and self.cycle.more_body):
            self._pending = max(0, self._pending + size - self._given)
            if self._pending > self._limits.url_bytes + self._limits.header_bytes:
                self._refuse(self._headers_too_large())
                return
        self._note()
        if self._answering and self.cycle.more_body and len(self.cycle.body) >= GULP_BYTES:
            self.cycle.message_event.set()
            self.flow.pause_reading()  # until the application asks for more: one piece is kept, not all that comes

    def _feed(self, data: bytes) -> bytes:
        """Returns what is to be fed next: all of it again where an upgrade was asked for, which nobody gets here."""
        try:
            self.parser.feed_data(data)
            if self._chunks:
                self._take_chunks()
        except httptools.HttpParserUpgrade as upgrade:
            return self._without_upgrade() + data[upgrade.args[0] :]
        except httptools.HttpParserError:
            refusal, self._refusal = self._refusal, None
            self._refuse(refusal or ApiError(400, "This is no HTTP request that can be read.", code="bad_http"))
        return b""

    def _without_upgrade(self) -> bytes:
        """The head once more, for a parser that knows of no upgrade: the one that saw it takes the body for another
        protocol's."""
        method, version = self.parser.get_method(), self.parser.get_http_version().encode()
        headers = [name + b": " + value for name, value in self.headers if name != b"upgrade"]
        self._upgrading = False
        self.parser = httptools.HttpRequestParser(self)
        self.parser.set_dangerous_leniencies(lenient_data_after_close=True)
        return b"\r\n".join([method + b" " + self.url + b" HTTP/" + version, *headers, b"", b""])

    def _note(self) -> None:
        """Tell what the connection is doing now, and mind the time of a head that is on its way."""
        if self._answering:
            if self.cycle.more_body and not self.pipeline:
                self._connections.reading(self, 0)  # the budget of bodies counts what is kept
            else:
                self._connections.at_work(self)
        elif self._in_head:
            self._unset_keepalive_if_required()
            self._connections.reading(self, self._pending)
            if self._late is None:
                self._late = self.loop.call_later(self._limits.head_seconds, self._head_is_late)

    def _head_is_late(self) -> None:
        self._late = None
        seconds = self._limits.head_seconds
        self._refuse(
            ApiError(408, f"The headers did not come within {seconds:g} s (--header-timeout).", code="header_timeout")
        )

    # -- the parser's calls ---------------------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._in_head, self._head_bytes = True, 0

    def on_url(self, url: bytes) -> None:
        super().on_url(url)
        if len(self.url) > self._limits.url_bytes:
            self._stop(414, f"The URL has more than {self._limits.url_bytes:,} bytes.", "url_too_long")

    def on_header(self, name: bytes, value: bytes) -> None:
        """Count the header's bytes; trailers come here, too."""
        self._head_bytes += len(name) + len(value) + 4
        if self._head_bytes > self._limits.header_bytes:
            self._refusal = self._headers_too_large()
            raise self._refusal
        if len(self.headers) >= self._limits.headers:
            self._stop(431, f"The request has more than {self._limits.headers} headers.", "headers_too_large")
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        if self._late is not None:
            self._late.cancel()
            self._late = None
        if self.parser.get_method() == b"CONNECT":
            self._stop(405, "CONNECT is for proxies, and this is none.", "method_not_allowed")
        if self.parser.should_upgrade():
            self._upgrading = True
            return
        if len(self.pipeline) >= _MOST_PIPELINED:
            self._stop(400, f"More than {_MOST_PIPELINED} requests were sent ahead of their answers.", "pipelined")
        self._in_head, self._pending = False, 0
        self._given += len(self.url) + self._head_bytes
        self._unset_keepalive_if_required()
        super().on_headers_complete()
        transport = _Lingering(self.transport, self._close_after_answer)
        self.cycle.transport = cast(asyncio.Transport, transport)

    @property
    def on_body(self) -> Callable[[bytes], None]:
        """What the parser calls for every chunk, of which some clients send millions: nothing of Python's."""
        return self._chunks.append

    def on_message_complete(self) -> None:
        if self._upgrading:
            return
        self._take_chunks()
        self._pending = 0
        super().on_message_complete()

    def _take_chunks(self) -> None:
        """The application is not called for each, as uvicorn would, but for a gulp, or for what there is at the end."""
        body = b"".join(self._chunks)
        self._pending = 0
        self._given += len(body) + 12 * len(self._chunks)  # with the signs around a chunk
        self._chunks.clear()
        if not self.cycle.response_complete:
            self.cycle.body += body

    def _stop(self, status: int, why: str, code: str) -> None:
        """Raises, which ends the parsing; what is raised is told."""
        self._refusal = ApiError(status, why, code=code)
        raise self._refusal

    def _headers_too_large(self) -> ApiError:
        most = self._limits.header_bytes
        return ApiError(431, f"The headers have more than {most:,} bytes.", code="headers_too_large")

    # -- answers and ends -----------------------------------------------------------------------------------------

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        self._running = cycle
        state = cycle.scope["state"]
        client = _Client(self.transport, cycle)
        state["is_gone"], state["abandon"] = client.is_gone, client.abandon
        state["piece_seconds"] = self._last_parse
        super()._start_asgi_task(cycle, app)

    def _last_parse(self) -> float:
        return self._parse_seconds

    def on_response_complete(self) -> None:
        self._running = None
        if (self._deaf and not self.pipeline) or self.transport.is_closing():
            self.server_state.total_requests += 1
            return
        if not self.pipeline and self.cycle.more_body:  # answered before it was all here, and nobody reads the rest
            self._linger()
            return
        super().on_response_complete()
        if self.timeout_keep_alive_task is None:
            return  # the next one is being answered
        if self._in_head:
            self._note()
        else:
            self._connections.idle(self)

    def _close_after_answer(self) -> None:
        if self.cycle is not None and self.cycle.more_body:
            self._linger()
        elif self._running is not None and not self._running.response_complete:
            self.transport.abort()  # it was given up, and nobody could make use of the rest
        else:
            self._close(self.timeout_keep_alive)

    def timeout_keep_alive_handler(self) -> None:
        if not self.transport.is_closing():
            self._close(_LINGER_SECONDS)

    def _close(self, seconds: float) -> None:
        """Once all that was written is sent, and after so long at the latest: a client that does not read would keep
        the connection for ever."""
        self.transport.close()
        self._abort_after(seconds)

    def _abort_after(self, seconds: float) -> None:
        if self._closing is None:
            self._closing = self.loop.call_later(seconds, self.transport.abort)

    def _refuse(self, error: ApiError) -> None:
        """Refuse what came. What was asked before is answered; then the connection ends."""
        self._connections.refusals.count(f"requests refused with {error.status}: {error.code}")
        self._deaf = True
        if self._late is not None:
            self._late.cancel()
        if self._answering and (not self.cycle.more_body or self.pipeline or self.cycle.response_started):
            self.cycle.keep_alive = False
            if self.cycle.more_body:
                self.transport.abort()
            return
        if self._answering:  # its body was to come still
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        self._write(error)
        self._linger()

    def _write(self, error: ApiError) -> None:
        body = json.dumps(error.body).encode("ascii")
        headers = [*self.server_state.default_headers, (b"content-type", b"application/json")]
        headers += [(b"content-length", b"%d" % len(body)), (b"connection", b"close")]
        headers += [(name.lower().encode(), value.encode()) for name, value in error.headers.items()]
        lines = b"".join(name + b": " + value + b"\r\n" for name, value in headers)
        self.transport.write(STATUS_LINE[error.status] + lines + b"\r\n" + body)

    def _linger(self) -> None:
        """Close so that the client reads the answer: closing at once, with bytes unread, would take it away again."""
        self._deaf = True
        if self.cycle is not None:
            self.cycle.body.clear()  # nobody asks for it any more
        self._unset_keepalive_if_required()
        if self.transport.is_closing():
            return
        if not self.transport.can_write_eof():  # TLS says its own goodbye
            self._close(_LINGER_SECONDS)
            return
        self.transport.write_eof()
        self.flow.resume_reading()
        self._abort_after(_LINGER_SECONDS)


class _Client:
    """The client of one request, for the application that answers it. The cycle holds this by its scope, and so is
    held weakly here: nothing is to be left for the collector."""

    __slots__ = ("_cycle", "_transport")

    def __init__(self, transport: asyncio.Transport, cycle: RequestResponseCycle):
        self._transport, self._cycle = transport, weakref.ref(cycle)

    def is_gone(self) -> bool:
        """Return whether the client has left. The transport knows a round of the loop before the protocol: an
        application that ends without an answer meanwhile would be an error for uvicorn, unless the cycle is notified.
        """
        cycle = self._cycle()
        if cycle is not None and self._transport.is_closing():
            cycle.disconnected = True
        return cycle is None or cycle.disconnected

    def abandon(self) -> None:
        """End the connection in the middle of an answer that the client does not take."""
        if (cycle := self._cycle()) is not None:
            cycle.disconnected = True
        self._transport.abort()


class _Lingering:
    """What uvicorn's cycle uses of a transport, whose end somebody else decides on: uvicorn closes a connection as soon
    as its answer is written, and a client that is still sending would see a reset instead of it."""

    __slots__ = ("_transport", "close")

    def __init__(self, transport: asyncio.Transport, close: Callable[[], None]):
        self._transport = transport
        self.close = close

    def write(self, data: bytes) -> None:
        self._transport.write(data)

    def is_closing(self) -> bool:
        return self._transport.is_closing()
