"""A connection without a network: which names of uvicorn it uses, and clients that leave between two rounds."""

from __future__ import annotations

import ast
import asyncio
import inspect
import logging
import textwrap
from typing import Any

import pytest
import uvicorn
from starlette.types import Receive, Scope, Send
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle
from uvicorn.server import ServerState

from inflight.server import process
from inflight.server.ingress import connection
from inflight.server.ingress.addresses import Networks
from inflight.server.ingress.answering import abandon, is_gone
from inflight.server.ingress.connection import Connection
from inflight.server.ingress.connections import ConnectionLimits, Connections
from inflight.server.ingress.refusals import Refusals

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


async def answered(app: Any, transport: Transport) -> None:
    """One request, served by an application that may close the transport."""
    limits = ConnectionLimits(head_seconds=5, connections=5, per_address=5, trusted=Networks(()))
    config = uvicorn.Config(app, http="httptools", ws="none", log_config=None)
    served = Connection(
        connections=Connections(limits, Refusals()),
        config=config,
        server_state=ServerState(),
        app_state={},
        _loop=asyncio.get_running_loop(),
    )
    served.connection_made(transport)  # type: ignore[arg-type]
    served.data_received(REQUEST)
    await asyncio.gather(*served.tasks)
    served.connection_lost(None)


def test_who_leaves_before_its_turn_is_no_error(caplog: pytest.LogCaptureFixture) -> None:
    transport = Transport()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            transport.closing = True
            assert is_gone(scope)

    asyncio.run(answered(app, transport))
    assert transport.sent == b"" and [one for one in caplog.records if one.levelno >= logging.ERROR] == []


def test_an_answer_that_is_given_up_ends_the_connection_without_an_error(caplog: pytest.LogCaptureFixture) -> None:
    transport = Transport()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            await send({"type": "http.response.start", "status": 200, "headers": []})
            abandon(scope)

    asyncio.run(answered(app, transport))
    assert transport.aborted and [one for one in caplog.records if one.levelno >= logging.ERROR] == []


# -- names of uvicorn's that are no public ones -------------------------------------------------------------------


def used(code: Any, owner: str) -> set[str]:
    """Attributes that code reads or writes of a name, such as `self` or `self.cycle`."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(code)))
    return {one.attr for one in ast.walk(tree) if isinstance(one, ast.Attribute) and ast.unparse(one.value) == owner}


def attributes(kind: type) -> set[str]:
    """Of a class and, as its methods use them, of its instances."""
    return set(dir(kind)) | used(kind, "self")


def parameters(function: Any) -> list[str]:
    return list(inspect.signature(function).parameters)


def overridden(kind: type, base: type) -> set[str]:
    return {name for name, value in vars(kind).items() if not name.startswith("__") and hasattr(base, name)}


def test_uvicorn_has_all_that_the_connection_leans_on() -> None:
    own = set(vars(Connection)) | used(Connection.__init__, "self")
    assert used(Connection, "self") - own <= attributes(HttpToolsProtocol)
    cycle = {name for owner in ("self.cycle", "cycle", "running") for name in used(Connection, owner)}
    assert cycle | used(connection._Client, "self._cycle") <= attributes(RequestResponseCycle)
    assert used(Connection, "self.server_state") <= attributes(ServerState)
    found = overridden(Connection, HttpToolsProtocol)
    assert found == {
        *("connection_made", "connection_lost", "shutdown", "data_received", "timeout_keep_alive_handler"),
        *("on_message_begin", "on_url", "on_header", "on_headers_complete", "on_body", "on_message_complete"),
        *("_start_asgi_task", "on_response_complete"),
    }
    for name in found - {"on_body"}:  # that one is a property here
        assert parameters(getattr(Connection, name)) == parameters(getattr(HttpToolsProtocol, name))


def test_uvicorn_has_all_that_the_process_leans_on() -> None:
    server = process._Server
    own = set(vars(server)) | used(server.__init__, "self")
    assert used(server, "self") - own <= attributes(uvicorn.Server)
    found = overridden(server, uvicorn.Server)
    assert found == {"startup", "main_loop", "shutdown", "handle_exit"}
    for name in found:
        assert parameters(getattr(server, name)) == parameters(getattr(uvicorn.Server, name))
