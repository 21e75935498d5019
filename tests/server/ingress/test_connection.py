"""A connection without a network: an answer that is given up, and which names of uvicorn are used."""

from __future__ import annotations

import ast
import asyncio
import gc
import inspect
import logging
import textwrap
import weakref
from typing import Any

import pytest
import uvicorn
from starlette.types import Receive, Scope, Send
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

from inflight.server import http_server
from inflight.server.asgi import abandon
from inflight.server.ingress.addresses import Networks
from inflight.server.ingress.connections import Connection, Connections

REQUEST = b"GET / HTTP/1.1\r\nhost: x\r\n\r\n"


class Transport:
    """Closes as the event loop's does: the protocol hears of it later."""

    def __init__(self) -> None:
        self.closing = self.aborted = False
        self.sent = b""

    def is_closing(self) -> bool:
        return self.closing

    def abort(self) -> None:
        self.closing = self.aborted = True

    close = abort

    def write(self, data: bytes) -> None:
        self.sent += data

    def get_extra_info(self, name: str) -> None:
        return None

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...


async def answered(app: Any, transport: Transport) -> weakref.ref[Connection]:
    """Serve one request by an application that may close the transport. Return the connection."""
    config = uvicorn.Config(app, http="httptools", ws="none", log_config=None)
    served = Connection(
        connections=Connections(5, 5, Networks(()), 5),
        config=config,
        server_state=ServerState(),
        app_state={},
        _loop=asyncio.get_running_loop(),
    )
    served.connection_made(transport)  # type: ignore[arg-type]
    served.data_received(REQUEST)
    await asyncio.gather(*served.tasks)
    served.connection_lost(None)
    return weakref.ref(served)


def test_an_answer_that_is_given_up_ends_the_connection_without_an_error(caplog: pytest.LogCaptureFixture) -> None:
    transport = Transport()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            await send({"type": "http.response.start", "status": 200, "headers": []})
            abandon(scope)

    asyncio.run(answered(app, transport))
    assert transport.aborted and [one for one in caplog.records if one.levelno >= logging.ERROR] == []


def test_a_connection_leaves_nothing_for_the_collector() -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"0")]})
            await send({"type": "http.response.body"})

    async def main() -> bool:
        gone = await answered(app, Transport())
        await asyncio.sleep(0)
        return gone() is None

    gc.collect()
    gc.disable()
    try:
        assert asyncio.run(main())
    finally:
        gc.enable()


def overridden(kind: type, base: type) -> set[str]:
    return {name for name, value in vars(kind).items() if not name.startswith("__") and hasattr(base, name)}


@pytest.mark.parametrize(("kind", "base"), [(Connection, HttpToolsProtocol), (http_server._Server, uvicorn.Server)])
def test_no_private_name_of_uvicorn_is_overridden_or_used(kind: type, base: type) -> None:
    private = {name for name in dir(base) if name.startswith("_") and not name.startswith("__")}
    tree = ast.parse(textwrap.dedent(inspect.getsource(kind)))
    mentioned = {one.attr for one in ast.walk(tree) if isinstance(one, ast.Attribute)}
    assert not private & mentioned and not private & set(vars(kind))
    for name in overridden(kind, base):
        assert parameters(getattr(kind, name)) == parameters(getattr(base, name)), name


def parameters(function: Any) -> list[str]:
    return list(inspect.signature(function).parameters)
