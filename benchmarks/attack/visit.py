"""One visit of an attacker: a connection from an address of its own, what it sends, and the answer."""

from __future__ import annotations

import asyncio
import random
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field

from benchmarks.attack.wire import HOST, get, head

ADDRESSES = 32  # that attackers come from
PATIENCE = 20.0  # seconds for which an attacker waits for an answer
WRONG_KEY = "sk-not-known-here"
PIECE = 1 << 16
_SMALL_BUFFER = 4096


@dataclass(slots=True)
class Tally:
    """Count the answers to attackers, by status, or by what happened instead."""

    visits: int = 0
    sent: int = 0  # bytes
    answers: dict[str, int] = field(default_factory=dict)


class Line:
    """A connection. What goes wrong with it is the server's right, and no error here."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, tally: Tally):
        self._reader, self._writer, self._tally = reader, writer, tally
        self.is_open = True

    async def send(self, data: bytes) -> None:
        for start in range(0, len(data), PIECE):
            if not self.is_open:
                return
            piece = data[start : start + PIECE]
            try:
                self._writer.write(piece)
                await self._writer.drain()
                self._tally.sent += len(piece)
            except OSError:
                self.is_open = False

    async def drip(self, data: bytes, pause: float) -> None:
        """A byte at a time, for as long as the server takes them."""
        for place in range(len(data)):
            if not self.is_open or self._reader.at_eof():
                return
            await self.send(data[place : place + 1])
            await asyncio.sleep(pause)

    async def status(self) -> str:
        """The answer's status, or "no HTTP" or "closed"."""
        try:
            line = await self._reader.readline()
        except (OSError, ValueError):
            line = b""
        if line.startswith(b"HTTP/1."):
            return line[9:12].decode("ascii", "replace")
        return "no HTTP" if line else "closed"

    async def read(self, most: int = PIECE) -> bytes:
        """Some bytes; none when the other side has closed."""
        with suppress(OSError):
            return await self._reader.read(most)
        return b""

    async def rest(self) -> bytes:
        pieces = []
        while piece := await self.read():
            pieces.append(piece)
        return b"".join(pieces)

    def leave(self) -> None:
        """Go away without a word."""
        self.is_open = False
        self._writer.transport.abort()


class Visit:
    """rng: the attacker's own. number: of the visitor, which decides on its address and key."""

    def __init__(self, port: int, keys: list[str], number: int, rng: random.Random, tally: Tally):
        self.port = port
        self.address = f"127.0.0.{2 + number % ADDRESSES}"
        self.key = keys[number % len(keys)] if keys else ""
        self.rng = rng
        self.tally = tally

    def note(self, what: str) -> None:
        self.tally.answers[what] = self.tally.answers.get(what, 0) + 1

    @asynccontextmanager
    async def line(self, small_buffer: bool = False) -> AsyncIterator[Line | None]:
        """small_buffer: as little as may lie between a slow reader and the server. None: there is no connection."""
        self.tally.visits += 1
        plain = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        try:
            plain.setblocking(False)
            if small_buffer:
                plain.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _SMALL_BUFFER)
            plain.bind((self.address, 0))
            await asyncio.get_running_loop().sock_connect(plain, (HOST, self.port))
            reader, writer = await asyncio.open_connection(sock=plain, limit=_SMALL_BUFFER if small_buffer else PIECE)
        except OSError:
            plain.close()
            self.note("no connection")
            yield None
            return
        line = Line(reader, writer, self.tally)
        try:
            yield line
        finally:
            line.leave()

    async def ask(self, *wire: bytes, pause: float = 0.0) -> str:
        """Send all of it, pausing between the pieces, and read the answer to its end; its status."""
        status, _ = await self._exchange(wire, pause)
        return status

    async def post(self, path: str, body: bytes, key: str | None = None) -> str:
        """key: None: the attacker's own."""
        return await self.ask(head(path, len(body), self.key if key is None else key), body)

    async def json(self, method: str, path: str, body: bytes = b"", kind: str = "application/json") -> bytes:
        """The answer's body; empty where there is none, or no success."""
        wire = head(path, len(body), self.key, method, kind) if method == "POST" else get(path, self.key)
        if method == "DELETE":
            wire = head(path, None, self.key, "DELETE")
        status, answer = await self._exchange((wire, body))
        return answer.partition(b"\r\n\r\n")[2] if status == "200" else b""

    async def _exchange(self, wire: tuple[bytes, ...], pause: float = 0.0) -> tuple[str, bytes]:
        """The answer's status, and what stands behind its first line."""
        async with self.line() as line:
            if line is None:
                return "no connection", b""
            sending = asyncio.ensure_future(self._send_all(line, wire, pause))
            try:
                async with asyncio.timeout(PATIENCE):
                    status = await line.status()
                    answer = await line.rest()
            except TimeoutError:
                status, answer = f"nothing within {PATIENCE:g} s", b""
            finally:
                sending.cancel()
                with suppress(asyncio.CancelledError):
                    await sending
            self.note(status)
            return status, answer

    @staticmethod
    async def _send_all(line: Line, wire: tuple[bytes, ...], pause: float) -> None:
        for piece in wire:
            await line.send(piece)
            if pause:
                await asyncio.sleep(pause)
