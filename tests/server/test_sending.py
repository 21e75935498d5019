"""Requests leave little behind: nothing of its body while it is answered, and what was refused is gone with its answer.
And those who do not read what they asked for."""

from __future__ import annotations

import asyncio
import gc
import socket
import time
import tracemalloc
import weakref
from collections.abc import Awaitable, Callable, Iterator
from types import SimpleNamespace
from typing import Any, cast

import pytest
from breadth import first_of
from starlette.types import Message

from inflight.build import BUILT_IN
from inflight.server import generating
from inflight.server.answer_memory import BYTES_PER_ENTRY
from inflight.server.app import make_app
from inflight.server.asgi import PIECE_BYTES
from inflight.server.errors import ApiError, invalid
from inflight.server.sending import PreparedResponse, WholeAnswer
from inflight.server.served import OneModel
from inflight.server.service import Service
from inflight.server.settings import ServerSettings
from inflight.server.tenants import ANYONE, Tenants
from inflight.text import Tokenizer

from .conftest import Server
from .test_streams import raw_stream


class Mark:
    """Something whose end can be seen."""


class Body(bytes):
    """Bytes that carry a mark."""

    mark: Mark


class Bench:
    """The application, called without a server. prepare, open: what its service does of these."""

    def __init__(self, prepare: Callable[..., Awaitable[Any]], opening: Callable[..., Awaitable[Any]] | None = None):
        self.service = Service(ServerSettings(), lambda _: None)
        served = SimpleNamespace(
            bridge=SimpleNamespace(stopped=None),
            preprocessing=SimpleNamespace(prepare=prepare),
            translator=SimpleNamespace(call_without_blocking=_stream),
            tokenizer=None,
            max_model_len=64,
        )
        self.service.ready(OneModel(cast(Any, served)))
        if opening is not None:
            self.service.open = opening  # type: ignore[method-assign]
        self.app = make_app(self.service, Tenants([]), cast(Any, None), "0")
        self.state: dict[str, Any] = {}
        self.mark: weakref.ref[Mark] | None = None

    async def ask(self, path: str, size: int) -> int:
        """The status of the answer to a body of that size."""
        sent: list[Message] = []
        await self.app(self._scope(path, size), self._once(size), _into(sent))
        return cast(int, sent[0]["status"])

    def _scope(self, path: str, size: int) -> dict[str, Any]:
        return {
            "type": "http",
            "method": "POST",
            "path": path,
            "raw_path": path.encode(),
            "query_string": b"",
            "root_path": "",
            "scheme": "http",
            "http_version": "1.1",
            "client": ("127.0.0.1", 1),
            "server": ("127.0.0.1", 80),
            "headers": [(b"host", b"127.0.0.1"), (b"content-length", b"%d" % size)],
            "state": self.state,
        }

    def _once(self, size: int) -> Callable[[], Awaitable[Message]]:
        parts = [Body(size)]
        parts[0].mark = Mark()
        self.mark = weakref.ref(parts[0].mark)

        async def receive() -> Message:
            if not parts:
                await asyncio.Event().wait()
            return {"type": "http.request", "body": parts.pop(), "more_body": False}

        return receive


async def _stream(*_: Any, **__: Any) -> Any:
    return SimpleNamespace(stream=True, has_grammar=False, requests=())


def _into(sent: list[Message]) -> Callable[[Message], Awaitable[None]]:
    async def send(message: Message) -> None:
        sent.append(message)

    return send


@pytest.fixture
def no_collector() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.parametrize("size", [30_000, 1_000_000])
def test_a_body_is_gone_when_its_call_is_opened(size: int, no_collector: None) -> None:
    async def prepare(*_: Any) -> Any:
        settings = SimpleNamespace(bad_words=None, allowed_token_ids=None)
        return SimpleNamespace(settings=settings, prompts=(), ignored=())

    async def opening(call: Any, model_lease: Any, **_: Any) -> Any:
        kept.append(bench.mark is not None and bench.mark())
        kept.extend(one for one in tracemalloc.take_snapshot().traces if one.size >= size)  # copies
        raise invalid("Enough.")

    kept: list[Any] = []
    bench = Bench(prepare, opening)
    tracemalloc.start()
    try:
        assert asyncio.run(bench.ask("/v1/completions", size)) == 400
    finally:
        tracemalloc.stop()
    assert kept == [None]


@pytest.mark.parametrize("path", ["/v1/completions", "/detokenize"])
@pytest.mark.parametrize("size", first_of([100_000, 100]))
def test_what_the_frames_of_a_refused_call_held_is_gone_with_its_answer(
    path: str, size: int, no_collector: None
) -> None:
    frames: list[weakref.ref[Mark]] = []

    async def prepare(*_: Any) -> Any:
        mark = Mark()
        frames.append(weakref.ref(mark))
        try:
            raise ValueError("a cause")
        except ValueError:
            raise invalid("No.") from None

    bench = Bench(prepare)
    assert asyncio.run(bench.ask(path, size)) == 400
    assert isinstance(bench.state["error"], ApiError)
    assert frames[0]() is None
    assert bench.mark is not None and bench.mark() is None


class Slow:
    """A client that takes one piece, and the rest when `reads` is set."""

    def __init__(self) -> None:
        self.bodies: list[bytes] = []
        self.statuses: list[int] = []
        self.reads = asyncio.Event()

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.statuses.append(message["status"])
            return
        if self.bodies:
            await self.reads.wait()
        self.bodies.append(message["body"])

    async def receive(self) -> Message:
        await asyncio.Event().wait()
        raise AssertionError

    async def has_begun(self) -> None:
        while not self.bodies:
            await asyncio.sleep(0)


def test_an_answer_counts_until_its_client_has_taken_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(generating, "LAST_WORDS", 0.001)
    content = b'"' + b"x" * (3 * PIECE_BYTES) + b'"'

    async def made() -> bytes:
        return content

    async def main() -> None:
        service = Service(ServerSettings(), lambda _: None)
        reader, idler = Slow(), Slow()
        responses = [PreparedResponse(service.entered(ANYONE), made) for _ in range(2)]
        tasks = [
            asyncio.create_task(response({}, client.receive, client.send))
            for response, client in zip(responses, (reader, idler), strict=True)
        ]
        await reader.has_begun()
        await idler.has_begun()
        assert service.in_flight == 2
        assert [one.held for one in service._open] == [len(content) // BYTES_PER_ENTRY] * 2
        reader.reads.set()
        await tasks[0]
        assert b"".join(reader.bodies) == content and max(map(len, reader.bodies)) == PIECE_BYTES
        assert service.in_flight == 1
        (left,) = service._open
        left.end(ApiError(503, "Enough."))
        await tasks[1]
        assert service.in_flight == 0 and len(idler.bodies) == 1

    asyncio.run(main())


class Made(generating.Delivery):
    """A generation that has ended. answer: what came of it."""

    def __init__(self, content: bytes):
        super().__init__(None)
        self.content, self.ended = content, list[int]()

    async def answer(self) -> bytes:
        return self.content

    async def close(self, status: int) -> None:
        self.ended.append(status)


def test_a_call_is_closed_when_its_whole_answer_was_taken() -> None:
    async def main() -> None:
        generation, client = Made(b"x" * (2 * PIECE_BYTES)), Slow()
        response = WholeAnswer(cast(Any, generation))
        task = asyncio.create_task(response({}, client.receive, client.send))
        await client.has_begun()
        assert not generation.ended
        client.reads.set()
        await task
        assert generation.ended == [200]
        assert b"".join(client.bodies) == generation.content

    asyncio.run(main())


def calls(server: Server) -> int:
    """Return the calls in flight."""
    return int(server.get("/health").json()["detail"].split()[0])


def lost(client: Any) -> int:
    """Bytes until the server hangs up, which it does without having sent all."""
    received = 0
    client.settimeout(30)
    try:
        while piece := client.recv(1 << 20):
            received += len(piece)
    except ConnectionResetError:
        pass
    return received


TOKENIZER = Tokenizer.load(BUILT_IN)
LONGEST = max(range(TOKENIZER.vocab_size), key=lambda token_id: len(TOKENIZER.decode([token_id])))
LONG = {"tokens": [LONGEST] * 262_144}  # the answer is more than a kernel keeps


@pytest.mark.wide
def test_who_does_not_read_a_whole_answer_loses_its_place_and_its_connection(start: Callable[..., Server]) -> None:
    server = start("--request-timeout", "5")
    length = len(server.post("/detokenize", LONG).content)
    stalled = raw_stream(server, LONG, path="/detokenize", SO_RCVBUF=4096)
    assert server.settled(lambda: calls(server) == 1)
    assert server.settled(lambda: calls(server) == 0), "what is not taken counts, but not for ever"
    assert b" 200 OK" in stalled.recv(64) and lost(stalled) < length
    stalled.close()


@pytest.mark.wide
@pytest.mark.skipif(not hasattr(socket, "TCP_USER_TIMEOUT"), reason="Linux ends such connections")
def test_a_client_that_takes_nothing_loses_its_connection_though_nothing_is_in_flight(
    start: Callable[..., Server],
) -> None:
    server = start("--request-timeout", "1")
    length = len(server.get("/openapi.json").content)
    with socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.connect(("127.0.0.1", int(server.url.rpartition(":")[2])))
        client.sendall(b"GET /openapi.json HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        time.sleep(8)  # the kernel's timers
        assert lost(client) < length
