"""The server's first process, without the others."""

from __future__ import annotations

import asyncio
import socket
from types import SimpleNamespace
from typing import Any

import pytest

from inflight.server.processes.messages import Lost, Model, ServerSetup, Up
from inflight.server.processes.supervisor import Supervisor
from inflight.server.settings import ServerSettings
from inflight.server.tenants import Tenants
from inflight.text import TextFiles


@pytest.mark.parametrize(("serial", "names"), [(1, ("",)), (None, ("a", "b"))], ids=["one model", "several"])
def test_an_api_process_is_up_by_the_engine_that_is_there(serial: int | None, names: tuple[str, ...]) -> None:
    """Messages that it sent before it read that an engine has ended is of that engine."""

    async def main() -> None:
        ready: list[Any] = []
        server = ServerSetup(settings=ServerSettings(), version="1.0", log_format="json", log_level="info")
        nothing: Any = None
        with socket.create_server(("127.0.0.1", 0)) as bound:
            supervisor = Supervisor(server, Tenants(()), bound, nothing, ready.append)
        child: Any = SimpleNamespace(index=0, is_up=False, send=lambda message: None)
        engines: Any = SimpleNamespace(first_ready="first")
        supervisor._children[0], supervisor._engines = child, engines
        for number, name in enumerate(names):
            supervisor._announce(Model(TextFiles("/m"), name, number))
        if serial is not None:
            supervisor._announce(Lost("It has ended."))
            supervisor._heard(child, Up(0))
            supervisor._announce(Model(TextFiles("/m"), serial=serial))
            supervisor._heard(child, Up(0))
        assert not child.is_up and not ready
        supervisor._heard(child, Up(serial))
        assert child.is_up and ready == ["first"]

    asyncio.run(main())
