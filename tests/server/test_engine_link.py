"""The link of an API process to an engine."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from inflight.server.errors import ApiError
from inflight.server.processes.engine_link import EngineLink
from inflight.server.processes.messages import AdapterChanged, Model, Ready
from inflight.server.processes.single_engine import SingleEngine
from inflight.server.served import Served


def test_an_engine_that_is_lost_while_it_is_connected_to_has_no_model() -> None:
    async def main() -> None:
        async def connect(model: Model, ready: Awaitable[Ready]) -> Served:
            await ready
            raise AssertionError("it is never ready")

        link = EngineLink(Model(Path()), connect)
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
