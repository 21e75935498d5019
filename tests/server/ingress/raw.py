"""Connections by hand, from addresses of choice: what no well-behaved client sends."""

from __future__ import annotations

import contextlib
import json
import socket
from typing import Any

from ..conftest import Server

GENERATE: dict[str, Any] = {"prompt": "Once", "max_tokens": 2}


class Raw:
    """A connection to the server. source: an address of this machine's loopback network."""

    def __init__(self, server: Server, source: str = "127.0.0.2", seconds: float = 30):
        host, _, port = server.url.removeprefix("http://").rpartition(":")
        self.socket = socket.create_connection((host, int(port)), seconds, source_address=(source, 0))

    def __enter__(self) -> Raw:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def send(self, data: bytes) -> Raw:
        """As much as the server takes: it may hang up in between."""
        with contextlib.suppress(ConnectionResetError, BrokenPipeError):
            self.socket.sendall(data)
        return self

    def answer(self) -> Answer:
        """All that comes until the server hangs up."""
        data = b""
        with contextlib.suppress(ConnectionResetError):
            while piece := self.socket.recv(65536):
                data += piece
        return Answer(data)

    def one(self) -> Answer:
        """The first answer, with a length, on a connection that stays open."""
        data = b""
        while b"\r\n\r\n" not in data:
            data += self._some()
        head, _, body = data.partition(b"\r\n\r\n")
        length = int(Answer(head + b"\r\n\r\n").headers["content-length"])
        while len(body) < length:
            body += self._some()
        return Answer(head + b"\r\n\r\n" + body)

    def _some(self) -> bytes:
        piece = self.socket.recv(65536)
        if not piece:
            raise ConnectionResetError("closed before its answer was whole")
        return piece

    @property
    def is_closed(self) -> bool:
        """Whether the server has hung up; what it has sent before is thrown away."""
        self.socket.setblocking(False)
        try:
            while self.socket.recv(65536):
                pass
            return True
        except BlockingIOError:
            return False
        except ConnectionResetError:
            return True


class Answer:
    def __init__(self, data: bytes):
        head, _, self.body = data.partition(b"\r\n\r\n")
        first, *lines = head.decode("latin-1").split("\r\n")
        self.status = int(first.split(" ")[1]) if first else 0
        self.headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}

    @property
    def error(self) -> dict[str, Any]:
        error: dict[str, Any] = json.loads(self.body)["error"]
        return error


def head(method: str, path: str, *headers: str, length: int | None = None) -> bytes:
    lines = [f"{method} {path} HTTP/1.1", "Host: 127.0.0.1", "Content-Type: application/json", *headers]
    lines += [] if length is None else [f"Content-Length: {length}"]
    return "\r\n".join([*lines, "", ""]).encode("latin-1")


def request(body: Any = GENERATE, *headers: str, path: str = "/v1/completions") -> bytes:
    encoded = json.dumps(body).encode()
    return head("POST", path, *headers, length=len(encoded)) + encoded
