"""A server that answers at a scripted pace and notes when it wrote what: the truth that a load client is measured by.

It writes to the socket itself, so that its stamps are of the write and not of a buffer. `python -m
benchmarks.stub_server` prints its port; `StubServer` runs it.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import json
import os
import socket
import struct
import subprocess
import sys
import time
import urllib.request
from array import array
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import uvloop

from benchmarks.stub_script import GARBAGE, HEAD, TAIL, Frames, Script, chunk, script_of, simple
from inflight.bench.timer import Timer


@dataclass(slots=True)
class Stamps:
    """Hold a request's times by time.perf_counter, which all processes share. tokens: before each was written."""

    received: float
    tokens: array[float] = field(default_factory=lambda: array("d"))


class Stub:
    """Hold what all connections share: the clock of frames, stamps, whose turn it is."""

    def __init__(self) -> None:
        self._coming: list[tuple[float, int, Stream]] = []
        self._order = itertools.count()
        self._timer = Timer(asyncio.get_running_loop(), self._ring)
        self.stamps: dict[str, Stamps] = {}
        self.seen: Counter[str] = Counter()
        self.free_at = 0.0

    def at(self, moment: float, stream: Stream) -> None:
        heapq.heappush(self._coming, (moment, next(self._order), stream))
        if self._coming[0][2] is stream:
            self._timer.set(moment)

    def _ring(self) -> None:
        now = time.perf_counter()
        while self._coming and self._coming[0][0] <= now:
            heapq.heappop(self._coming)[2].step()
        if self._coming:
            self._timer.set(self._coming[0][0])


class Stream:
    """One answer in flight."""

    def __init__(self, stub: Stub, connection: Connection, script: Script, chat: bool):
        self._stub, self._connection, self._script = stub, connection, script
        now = time.perf_counter()
        name = f"stub-{len(stub.stamps)}"
        self._stamps = stub.stamps[name] = Stamps(now)
        self._frames = Frames(script, name, chat)
        self._sent = 0
        self._begun = False
        if script.busy_s:
            stub.free_at = now = max(now, stub.free_at) + script.busy_s
        self._due = now + script.first_s
        if self._due <= time.perf_counter():
            self.step()
        else:
            stub.at(self._due, self)

    def step(self) -> None:
        """Write what is due, and say when more is."""
        script = self._script
        if script.page:
            self._write(chunk(script.page.encode()) + TAIL, 0)
            return
        if script.whole:
            self._connection.write(simple(200, self._frames.whole()))
            return
        if script.fault and self._sent // script.per_frame >= script.fault_after:
            self._fail()
            return
        end = min(self._sent + script.per_frame, script.tokens)
        data = chunk(self._frames.tokens(self._sent, end)) if script.tokens else b""
        last = end >= script.tokens
        if last:
            data += b"".join(chunk(event) for event in (self._frames.end(),) if event) + TAIL
        self._write(data, end - self._sent)
        self._sent = end
        if not last:
            self._due += script.gap_s
            self._stub.at(self._due, self)

    def _write(self, data: bytes, tokens: int) -> None:
        if not self._begun:
            self._begun = True
            data = HEAD + (chunk(self._frames.role()) if self._script.role else b"") + data
        self._stamps.tokens.extend([time.perf_counter()] * tokens)
        for begin in range(0, len(data), self._script.cut or len(data)):
            self._connection.write(data[begin : begin + (self._script.cut or len(data))])

    def _fail(self) -> None:
        fault = self._script.fault
        if fault == "reset":
            self._connection.reset()
        elif fault == "close":
            self._connection.close()
        elif fault == "garbage":
            self._connection.write(GARBAGE)
            self._connection.close()
        elif fault == "end":
            self._write(TAIL, 0)
        elif fault == "bad_json":
            self._write(chunk(self._frames.line('{"choices": [')), 0)
        elif fault == "error":
            self._write(chunk(self._frames.error()) + TAIL, 0)


class Connection(asyncio.Protocol):
    def __init__(self, stub: Stub):
        self._stub = stub
        self._read = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._socket = transport.get_extra_info("socket")
        self._file = self._socket.fileno()

    def data_received(self, data: bytes) -> None:
        self._read += data
        head, found, rest = self._read.partition(b"\r\n\r\n")
        length = next(
            (int(line[15:]) for line in head.split(b"\r\n") if line.lower().startswith(b"content-length:")), 0
        )
        if found and len(rest) >= length:
            self._read = rest[length:]
            method, path, _ = head.partition(b"\r\n")[0].split(b" ")
            self._answer(method, path, rest[:length])

    def write(self, data: bytes) -> None:
        """At once, for the stamps' sake."""
        if self._transport.is_closing():
            return
        try:
            written = 0 if self._transport.get_write_buffer_size() else os.write(self._file, data)
        except BlockingIOError:
            written = 0
        except OSError:
            return  # the client has gone
        if written < len(data):
            self._transport.write(data[written:])

    def close(self) -> None:
        self._transport.close()

    def reset(self) -> None:
        option = struct.pack("ii", 1, 0)  # close without the polite words
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, option)
        self._transport.abort()

    def _answer(self, method: bytes, path: bytes, body: bytes) -> None:
        stub = self._stub
        if method == b"POST":
            script = script_of(body)
            stub.seen[script.name] += 1
            if script.status != 200 and stub.seen[script.name] <= script.refusals:
                headers = () if script.retry_after is None else (f"Retry-After: {script.retry_after}",)
                self.write(simple(script.status, {"error": {"message": "come later"}}, *headers))
            else:
                Stream(stub, self, script, chat=path.endswith(b"/chat/completions"))
        elif path == b"/v1/models":
            self.write(simple(200, {"data": [{"id": "stub"}]}))
        elif path == b"/stamps":
            stamps = {name: [one.received, one.tokens.tolist()] for name, one in stub.stamps.items()}
            stub.stamps.clear()
            self.write(simple(200, stamps))
        else:
            self.write(simple(404, {"error": {"message": "there is nothing here"}}))


class StubServer:
    """The stub in a process of its own. core: that it is to stay on."""

    def __init__(self, core: int | None = None):
        root = Path(__file__).parent.parent
        self._process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.stub_server"], stdout=subprocess.PIPE, text=True, cwd=root
        )
        if core is not None:
            os.sched_setaffinity(self._process.pid, {core})
        assert self._process.stdout is not None
        self.url = f"http://127.0.0.1:{int(self._process.stdout.readline())}"

    def stamps(self) -> dict[str, Stamps]:
        """By the id of the answer, of all requests since this was last asked."""
        with urllib.request.urlopen(f"{self.url}/stamps") as response:
            found: dict[str, Any] = json.load(response)
        return {name: Stamps(received, array("d", tokens)) for name, (received, tokens) in found.items()}

    def __enter__(self) -> StubServer:
        return self

    def __exit__(self, *exception: object) -> None:
        self._process.kill()
        self._process.communicate()


def body(script: dict[str, object], **fields: object) -> bytes:
    """Return the body of a request with this script."""
    return json.dumps({"model": "stub", "prompt": "x", "stream": True, **fields, "stub": script}).encode()


async def _serve() -> None:
    stub = Stub()
    server = await asyncio.get_running_loop().create_server(lambda: Connection(stub), "127.0.0.1", 0, backlog=4096)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    import resource

    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    uvloop.run(_serve())
