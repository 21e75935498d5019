"""Prompts that wait until a peer asks for their blocks."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable

from inflight.ray.wanted_prompts import WantedPrompts


class Exchange:
    """Asked in a thread of its own, as by a peer."""

    def when_wanted(self, told: Callable[[str], None]) -> None:
        self._told = told

    def ask(self, export_id: str) -> None:
        thread = threading.Thread(target=self._told, args=(export_id,))
        thread.start()
        thread.join()


def run(use: Callable[[WantedPrompts, Exchange], Awaitable[None]]) -> None:
    async def main() -> None:
        await asyncio.wait_for(use(prompts, exchange), 20)

    exchange = Exchange()
    prompts = WantedPrompts(exchange)  # before there is an event loop
    asyncio.run(main())


def test_who_is_asked_for_before_or_after_goes_on() -> None:
    async def use(prompts: WantedPrompts, exchange: Exchange) -> None:
        exchange.ask("early")
        await asyncio.sleep(0.01)
        assert await prompts.is_wanted("early", 5)
        waits = asyncio.create_task(prompts.is_wanted("late", 5))
        other = asyncio.create_task(prompts.is_wanted("other", 5))
        await asyncio.sleep(0.01)
        exchange.ask("late")
        assert await waits and not other.done()
        prompts.left("other")
        prompts.left("unknown")
        assert not await other

    run(use)


def test_who_is_asked_for_once_waits_the_next_time() -> None:
    async def use(prompts: WantedPrompts, exchange: Exchange) -> None:
        exchange.ask("one")
        await asyncio.sleep(0.01)
        assert await prompts.is_wanted("one", 5)
        assert not await prompts.is_wanted("one", 0.02)

    run(use)
