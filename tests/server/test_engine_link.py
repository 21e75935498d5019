"""The link of an API process to an engine."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from pathlib import Path

from inflight.server.processes.engine_link import EngineLink
from inflight.server.processes.messages import Model, Ready
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
