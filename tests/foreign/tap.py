"""The bytes that a client sends: a forwarder between it and the server that keeps what it saw.

Changes nothing: connections are joined as they are, half-closed where one side half-closes. Knows HTTP to separate one
request from the next.
"""

from __future__ import annotations

import contextlib
import json
import socket
import socketserver
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

import httptools

KEPT_BYTES = 1500


@dataclass(slots=True)
class Seen:
    """A request that passed. answered: the first bytes that came after it, for the reader of a failure."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes = b""
    answered: bytearray = field(default_factory=bytearray)

    @property
    def fields(self) -> dict[str, Any]:
        """The JSON object that was sent; empty for anything else."""
        with contextlib.suppress(ValueError):
            found = json.loads(self.body)
            if isinstance(found, dict):
                return found
        return {}

    def __str__(self) -> str:
        sent = self.body[:KEPT_BYTES].decode(errors="replace")
        return f"{self.method} {self.path}\n{sent}\n→ {self.answered.decode(errors='replace')}\n"


class Tap:
    """Listens on a free port for as long as it is open; `url` leads to the server behind it."""

    def __init__(self, server_url: str):
        where = urlsplit(server_url)
        self.seen: list[Seen] = []
        tap, behind = self, (where.hostname or "", where.port or 80)

        class Connection(socketserver.BaseRequestHandler):
            def handle(self) -> None:
                with socket.create_connection(behind) as server:
                    tap._join(self.request, server)

        class Listener(socketserver.ThreadingTCPServer):
            daemon_threads = True
            request_queue_size = 256

        self._listener = Listener(("127.0.0.1", 0), Connection)
        self.url = f"http://127.0.0.1:{self._listener.server_address[1]}"
        threading.Thread(target=self._listener.serve_forever, daemon=True).start()

    def close(self) -> None:
        self._listener.shutdown()
        self._listener.server_close()

    def bodies(self, path: str) -> list[dict[str, Any]]:
        return [seen.fields for seen in self.seen if seen.method == "POST" and seen.path == path]

    def _join(self, client: socket.socket, server: socket.socket) -> None:
        reading = _Reading(self.seen)
        back = threading.Thread(target=_pump, args=(server, client, reading.answer), daemon=True)
        back.start()
        _pump(client, server, reading.feed)
        back.join()


class _Reading:
    """The callbacks of one connection's parser."""

    def __init__(self, seen: list[Seen]):
        self._seen = seen
        self._current: Seen | None = None
        self._parser = httptools.HttpRequestParser(self)
        self.on_message_begin()

    def feed(self, part: bytes) -> None:
        self._parser.feed_data(part)

    def on_message_begin(self) -> None:
        self._url, self._body = b"", b""
        self._headers: dict[str, str] = {}

    def on_url(self, part: bytes) -> None:
        self._url += part

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers[name.decode().lower()] = value.decode(errors="replace")

    def on_body(self, part: bytes) -> None:
        self._body += part

    def on_message_complete(self) -> None:
        self._current = Seen(self._parser.get_method().decode(), self._url.decode(), self._headers, self._body)
        self._seen.append(self._current)

    def answer(self, part: bytes) -> None:
        current = self._current
        if current is not None and len(current.answered) < KEPT_BYTES:
            current.answered += part[: KEPT_BYTES - len(current.answered)]


def _pump(source: socket.socket, sink: socket.socket, look: Callable[[bytes], None]) -> None:
    with contextlib.suppress(OSError):
        while part := source.recv(65536):
            look(part)
            sink.sendall(part)
    with contextlib.suppress(OSError):
        sink.shutdown(socket.SHUT_WR)
