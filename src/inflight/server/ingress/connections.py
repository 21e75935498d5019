"""HTTP connections: uvicorn's protocol, with limits on their number, on the bytes of a head and on its time.

Overrides public callbacks of asyncio and httptools alone. Limits hold while bytes arrive, before there is a request.
"""

from __future__ import annotations

import asyncio
import json
import logging
import re
import time
from collections import Counter
from http import HTTPStatus
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from inflight.server.asgi import DRAIN_SECONDS
from inflight.server.errors import ApiError
from inflight.server.ingress.addresses import Networks, address_key

URL_BYTES = 8 << 10
HEADER_BYTES = 32 << 10  # of names and values, and of trailers behind a body
MAX_HEADERS = 100
MAX_PIPELINED = 8  # requests that were sent ahead of their answers
NEW_SECONDS = 0.1  # in which the request of a new connection is expected
WARN_SECONDS = 60.0  # between two warnings of refused connections
LAST_SECONDS = 1.5  # when the server ends, for an answer that is being sent; uvicorn waits 2 s
CHUNK_BYTES = 16  # allowed for the frame of a chunk
# llhttp takes the body behind a request to upgrade for another protocol's, and uvicorn drops it. The header is optional
# for servers, and Java's client sends it with every first request.
_UPGRADE = re.compile(rb"\r\nupgrade:", re.IGNORECASE)

log = logging.getLogger("inflight.ingress")


class Connections:
    """All open connections, the longest unused first."""

    def __init__(self, limit: int, per_address: int, trusted: Networks, head_seconds: float):
        """Count connections.

        Args:
            limit: Open at once.
            per_address: Of one address.
            trusted: Proxies, to which `per_address` does not apply.
            head_seconds: From the first byte of a head to its last.
        """
        self._limit, self._per_address, self._trusted = limit, per_address, trusted
        self.head_seconds = head_seconds
        self.ended = False  # no connection is admitted any more
        self._used: dict[Connection, float] = {}
        self._counts: Counter[str] = Counter()
        self._warned = -WARN_SECONDS

    def admit(self, connection: Connection) -> str | None:
        """Count a connection, and close an unused one if there is no room. Return why it is refused."""
        if self.ended:
            return "The server is shutting down"
        host, key = connection.host, connection.key
        if self._counts[key] >= self._per_address and host not in self._trusted and not self._evict(key):
            return self._refusal(
                f"Your address has {self._counts[key]} connections, its maximum (--max-connections-per-address)"
            )
        if len(self._used) >= self._limit and not self._evict(None):
            return self._refusal(f"The server has {len(self._used)} connections, its maximum (--max-connections)")
        self._used[connection] = time.monotonic()
        self._counts[key] += 1
        return None

    def use(self, connection: Connection) -> None:
        """Note that a request has come, so that other connections are closed first."""
        if self._used.pop(connection, None) is not None:
            self._used[connection] = time.monotonic()

    def discard(self, connection: Connection) -> None:
        """Forget a connection that is closed, or was never admitted."""
        if self._used.pop(connection, None) is not None:
            self._counts[connection.key] -= 1
            if not self._counts[connection.key]:
                del self._counts[connection.key]

    def _evict(self, key: str | None) -> bool:
        """Close the longest unused connection (of an address), but none at work. A new one whose request may be on its
        way is left too: of many clients that come at once some are refused, and none is cut off."""
        latest, victim = time.monotonic() - NEW_SECONDS, None
        for one, used in self._used.items():
            if one.is_at_work or key not in (None, one.key):
                continue
            if used <= latest:
                victim = one
                break
            victim = victim or (one if one.is_reading else None)
        if victim is None:
            return False
        self.discard(victim)
        victim.transport.abort()
        return True

    def _refusal(self, why: str) -> str:
        if time.monotonic() - self._warned >= WARN_SECONDS:
            self._warned = time.monotonic()
            log.warning(f"Connections are refused: {why}. (Logged at most once in {WARN_SECONDS:g} s.)")
        return why


class Connection(HttpToolsProtocol):
    def __init__(self, *, connections: Connections, **given: Any):
        self._pieces: list[
            bytes
        ] = []  # of a body, as the parser cuts them: a list's method costs less than one of ours
        self.on_body = self._pieces.append  # type: ignore[method-assign, assignment]
        super().__init__(**given)
        self._all = connections
        self.host = self.key = ""
        self._cycles: list[RequestResponseCycle] = []  # not answered yet; `self.cycle` is the newest
        self._refusal: ApiError | None = None  # why the parser was stopped
        self._is_refused = self._in_head = self._in_message = False
        self._head_bytes = self._unparsed = 0
        self._timer: asyncio.TimerHandle | None = None

    @property
    def is_reading(self) -> bool:
        """Return whether a request is on its way."""
        return self._in_message

    @property
    def is_at_work(self) -> bool:
        """Return whether a whole request is being answered."""
        return self.cycle is not None and not (self.cycle.response_complete or self.cycle.more_body)

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.host = self.client[0] if self.client else ""
        self.key = address_key(self.host)
        if (why := self._all.admit(self)) is not None:
            sentence = f"{why}; try again in 1 s."
            return self._refuse(
                ApiError(503, sentence, type="server_error", code="too_many_connections", retry_after=1.0)
            )
        self.timeout_keep_alive_task = self.loop.call_later(self.timeout_keep_alive, self.timeout_keep_alive_handler)

    def connection_lost(self, exc: Exception | None) -> None:
        self._all.discard(self)
        self._set_timer(None)
        for cycle in self._cycles:  # uvicorn notifies the newest alone
            cycle.disconnected = True
            cycle.message_event.set()
        super().connection_lost(exc)
        if self.timeout_keep_alive_task is not None:
            self.timeout_keep_alive_task.cancel()
        # No reference cycle is left for the collector.
        self.cycle = self.scope = None  # type: ignore[assignment]
        self._cycles.clear()
        self.pipeline.clear()

    def shutdown(self) -> None:
        """End with the server: at once without a whole request, else when the answer is sent, or soon."""
        if not self.is_at_work:
            return self.transport.abort()
        super().shutdown()
        self._set_timer(asyncio.get_running_loop().call_later(LAST_SECONDS, self.transport.abort))

    def abandon(self) -> None:
        """Abort the connection in the middle of an answer."""
        for cycle in self._cycles:
            cycle.disconnected = True
        self.transport.abort()

    def data_received(self, data: bytes) -> None:
        if self._is_refused:
            return
        if not self._in_message:
            self._unparsed = 0
        if self._in_head or not self._in_message:
            data = _without_upgrade(data)
        self._unparsed += len(data)
        super().data_received(data)
        self._take_pieces()
        self._unparsed = max(0, self._unparsed)
        if self._in_message and self._unparsed > URL_BYTES + HEADER_BYTES:
            self._refuse(_headers_too_large())
        idle = not self._in_message and (self.cycle is None or self.cycle.response_complete)
        if idle and self.timeout_keep_alive_task is None and not self._is_refused:  # bytes before a request
            self.timeout_keep_alive_task = self.loop.call_later(
                self.timeout_keep_alive, self.timeout_keep_alive_handler
            )

    # -- the parser's calls ---------------------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self.scope["state"]["abandon"] = self.abandon
        self._in_head = self._in_message = True
        self._head_bytes = 0
        self._set_timer(self.loop.call_later(self._all.head_seconds, self._head_is_late))

    def on_url(self, url: bytes) -> None:
        super().on_url(url)
        if len(self.url) > URL_BYTES:
            self._stop(_too_long_url())

    def on_header(self, name: bytes, value: bytes) -> None:
        """Count a header or trailer; trailers are ignored."""
        self._head_bytes += len(name) + len(value) + 4
        if self._head_bytes > HEADER_BYTES:
            self._stop(_headers_too_large())
        if len(self.headers) >= MAX_HEADERS:
            sentence = f"The request has more than {MAX_HEADERS} headers; send fewer."
            self._stop(ApiError(431, sentence, code="headers_too_large"))
        if self._in_head:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._set_timer(None)
        if self.parser.get_method() == b"CONNECT":
            self._stop(ApiError(405, "CONNECT is not supported: this server is no proxy.", code="method_not_allowed"))
        if self.parser.should_upgrade():
            self._stop(ApiError(400, "Only HTTP/1.1 is supported; leave out the header Upgrade.", code="upgrade"))
        if len(self.pipeline) >= MAX_PIPELINED:
            sentence = f"More than {MAX_PIPELINED} requests are pipelined on one connection; wait for answers first."
            self._stop(ApiError(400, sentence, code="pipelined"))
        self._in_head = False
        self._unparsed -= len(self.url) + self._head_bytes
        super().on_headers_complete()
        self._cycles = [*(one for one in self._cycles if not one.response_complete), self.cycle]
        self._all.use(self)

    def on_message_complete(self) -> None:
        self._take_pieces()
        self._in_message = False
        super().on_message_complete()

    def _take_pieces(self) -> None:
        if self._pieces:
            body = b"".join(self._pieces)
            self._unparsed -= len(body) + CHUNK_BYTES * len(self._pieces)
            self._pieces.clear()
            super().on_body(body)

    # -- refusals -------------------------------------------------------------------------------------------------

    def _stop(self, error: ApiError) -> None:
        """Stop the parser; uvicorn calls `send_400_response` then. Raises the error."""
        self._refusal = error
        raise error

    def send_400_response(self, msg: str) -> None:
        refusal, self._refusal = self._refusal, None
        self._refuse(
            refusal
            or ApiError(
                400, "The request is not valid HTTP/1.1; check the client or the proxy that sent it.", code="bad_http"
            )
        )

    def _head_is_late(self) -> None:
        sentence = (
            f"The headers did not arrive within {self._all.head_seconds:g} s (--header-timeout); send them again."
        )
        self._refuse(ApiError(408, sentence, code="header_timeout"))

    def _refuse(self, error: ApiError) -> None:
        """Refuse what has come, and ignore what follows. Requests before it are answered first."""
        self._is_refused = True
        self._pieces.clear()
        self._set_timer(None)
        waiting = [one for one in self._cycles if not one.response_complete]
        has_begun = False
        if waiting and self._in_message and not self._in_head:  # it is the newest one's body that cannot be read
            broken = waiting.pop()
            broken.disconnected, has_begun = True, broken.response_started
            broken.message_event.set()
        if waiting:
            waiting[-1].keep_alive = False
            return
        if has_begun:
            return self.transport.abort()
        self.transport.write(_response(error, self.server_state.default_headers))
        if not self.transport.can_write_eof():  # with TLS
            return self.transport.close()
        # Closing at once, with bytes unread, would reset the connection, and the answer might not be read.
        self.transport.write_eof()
        self.flow.resume_reading()
        self._set_timer(self.loop.call_later(DRAIN_SECONDS, self.transport.abort))

    def _set_timer(self, timer: asyncio.TimerHandle | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = timer


def _without_upgrade(data: bytes) -> bytes:
    """Rename the header Upgrade in a head, or in a part of one."""
    head, end, rest = data.partition(b"\r\n\r\n")
    return _UPGRADE.sub(b"\r\nx-upgrade:", head) + end + rest if _UPGRADE.search(head) else data


def _headers_too_large() -> ApiError:
    sentence = f"The headers are longer than {HEADER_BYTES:,} bytes; send fewer or shorter ones."
    return ApiError(431, sentence, code="headers_too_large")


def _too_long_url() -> ApiError:
    sentence = f"The URL is longer than {URL_BYTES:,} bytes; send the data in the body."
    return ApiError(414, sentence, code="url_too_long")


def _response(error: ApiError, default_headers: list[tuple[bytes, bytes]]) -> bytes:
    body = json.dumps(error.body).encode("ascii")
    headers = [*default_headers, (b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
    headers += [(b"connection", b"close"), *((name.encode(), value.encode()) for name, value in error.headers.items())]
    lines = b"".join(name + b": " + value + b"\r\n" for name, value in headers)
    return f"HTTP/1.1 {error.status} {HTTPStatus(error.status).phrase}\r\n".encode() + lines + b"\r\n" + body
