"""The link of an API process to an engine."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest

from inflight.engine.remote.client import OnStop
from inflight.server.errors import ApiError
from inflight.server.processes.engine_link import Connector, EngineLink
from inflight.server.processes.messages import AdapterChanged, EngineBroken, Lost, Model, Ready
from inflight.server.processes.single_engine import SingleEngine
from inflight.server.served import ServedEngine
from inflight.text import TextFiles


def test_an_engine_that_is_lost_while_it_is_connected_to_has_no_model() -> None:
    async def main() -> None:
        async def connect(model: Model, ready: Awaitable[Ready]) -> ServedEngine:
            await ready
            raise AssertionError("it is never ready")

        link = EngineLink(Model(TextFiles("")), connect)
        await asyncio.sleep(0)
        assert link.lose("It has ended.") is None
        await asyncio.sleep(0)
        assert link.lose("It has ended, as its client says.") is None and link.served is None and link.fault is None
        assert await link.connected() is None

    asyncio.run(main())


@pytest.mark.parametrize(("param", "status"), [("lora_name", 400), (None, 503)])
def test_a_change_of_adapters_without_an_engine_is_not_the_clients_fault(param: str | None, status: int) -> None:
    async def main() -> int:
        setup: Any = SimpleNamespace(serial=1)

        def answer(message: Any) -> None:
            changed = AdapterChanged(message.question, error="It cannot be.", param=param)
            asyncio.get_running_loop().call_soon(engine.heard, changed)

        service: Any = None
        engine = SingleEngine(setup, service, service, answer, service)
        with pytest.raises(ApiError) as refused:
            await engine.load_adapter("a", Path("a"))
        return refused.value.status

    assert asyncio.run(main()) == status


class Rig:
    """The only engine, as an API process sees it. sent: to the first process. clients: `on_stop` of each link."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.sent: list[Any] = []
        self.clients: list[OnStop] = []
        self.losses: list[str] = []
        setup: Any = SimpleNamespace(serial=1, server=SimpleNamespace(settings=None))
        service: Any = SimpleNamespace(lose_engine=lambda: self.losses.append("lost"))
        nothing: Any = None
        self.engine = SingleEngine(setup, service, nothing, self.sent.append, nothing)
        monkeypatch.setattr(self.engine._connector, "connect", self._connect)

    async def _connect(self, model: Model, ready: Any, settings: Any, preprocessing: Any, on_stop: OnStop) -> Any:
        self.clients.append(on_stop)
        await ready
        return SimpleNamespace(serial=model.serial)

    async def load(self, serial: int) -> None:
        self.engine.heard(Model(TextFiles(""), serial=serial))
        while len(self.clients) < serial:
            await asyncio.sleep(0)


def test_the_end_of_an_older_engines_client_is_not_the_next_engines(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        rig = Rig(monkeypatch)
        await rig.load(1)
        rig.engine.heard(Lost("It has ended."))
        await rig.load(2)
        rig.clients[0]("The engine was closed.", False)
        rig.engine.heard(Ready("ipc://x", msgspec.Raw(b"\x80"), ()))
        opened = await asyncio.wait_for(rig.engine.open(), 20)
        assert cast(Any, opened.served).serial == 2 and len(rig.losses) == 1

    asyncio.run(main())


@pytest.mark.parametrize("is_broken", [True, False])
def test_the_first_process_learns_of_an_engine_that_cannot_be_reached(
    monkeypatch: pytest.MonkeyPatch, is_broken: bool
) -> None:
    """It learns of all other ends by itself."""

    async def main() -> None:
        rig = Rig(monkeypatch)
        await rig.load(1)
        rig.clients[0]("It cannot be reached.", is_broken)
        assert rig.sent == [EngineBroken("", 1, "It cannot be reached.")] * is_broken and len(rig.losses) == 1

    asyncio.run(main())


def test_links_of_different_processes_number_requests_differently_after_many_loads() -> None:
    first, second = Connector(1), Connector(2)
    assert max(next(first._serials) for _ in range(1000)) < next(second._serials)
