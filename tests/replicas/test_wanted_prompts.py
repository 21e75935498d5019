"""Prompts that wait until a peer asks for their blocks."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable

from inflight.ray.prefilling import WantedPrompts


class Exchange:
    """Requests exports in a thread of its own, as a peer does."""

    def when_wanted(self, callback: Callable[[str], None]) -> None:
        self._callback = callback

    def ask(self, export_id: str) -> None:
        thread = threading.Thread(target=self._callback, args=(export_id,))
        thread.start()
        thread.join()


def run(use: Callable[[WantedPrompts, Exchange], Awaitable[None]]) -> None:
    async def main() -> None:
        await asyncio.wait_for(use(prompts, exchange), 20)

    exchange = Exchange()
    prompts = WantedPrompts(exchange)  # before there is an event loop
    asyncio.run(main())


def test_an_export_requested_before_or_after_is_started() -> None:
    async def use(prompts: WantedPrompts, exchange: Exchange) -> None:
        exchange.ask("early")
        await asyncio.sleep(0.01)
        assert await prompts.wait("early", 5)
        waits = asyncio.create_task(prompts.wait("late", 5))
        other = asyncio.create_task(prompts.wait("other", 5))
        await asyncio.sleep(0.01)
        exchange.ask("late")
        assert await waits and not other.done()
        prompts.abandon("other")
        prompts.abandon("unknown")
        assert not await other

    run(use)


def test_a_request_counts_for_one_prompt() -> None:
    async def use(prompts: WantedPrompts, exchange: Exchange) -> None:
        exchange.ask("one")
        await asyncio.sleep(0.01)
        assert await prompts.wait("one", 5)
        assert not await prompts.wait("one", 0.02)

    run(use)
