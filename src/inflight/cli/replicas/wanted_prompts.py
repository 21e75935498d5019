"""Prompts that a prefill replica is to compute wait until the decode replica has room for their blocks and asks for
them: what is computed earlier would only lie here, and give way to the next.

Knows exports by id: which are asked for, and who waits for that. Its coroutine runs in one event loop; that blocks are
asked for is told by threads of the exchange.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import OrderedDict
from collections.abc import Callable
from typing import Protocol

from inflight.engine.event_stream import settle

_REMEMBERED = 4096  # that were asked for before their prompts came


class Exchange(Protocol):
    def when_wanted(self, told: Callable[[str], None]) -> None:
        """Has it told of each export that a peer asks for before it has begun, in any thread."""


class WantedPrompts:
    def __init__(self, exchange: Exchange):
        """In the running event loop."""
        self._loop = asyncio.get_running_loop()
        self._early: OrderedDict[str, None] = OrderedDict()
        self._waiting: dict[str, asyncio.Future[bool]] = {}
        exchange.when_wanted(self._told)

    async def is_wanted(self, export_id: str, seconds: float) -> bool:
        """Once somebody has asked for it; False: nobody did for so long, or it is left."""
        if self._early.pop(export_id, self) is None:
            return True
        wanted: asyncio.Future[bool] = self._loop.create_future()
        self._waiting[export_id] = wanted
        timer = self._loop.call_later(seconds, settle, wanted, False)
        try:
            await wanted
        finally:
            timer.cancel()
            del self._waiting[export_id]
        return wanted.result()

    def left(self, export_id: str) -> None:
        """Nobody will."""
        if (wanted := self._waiting.get(export_id)) is not None:
            settle(wanted, False)

    def _told(self, export_id: str) -> None:
        with contextlib.suppress(RuntimeError):  # the event loop is closed
            self._loop.call_soon_threadsafe(self._ask, export_id)

    def _ask(self, export_id: str) -> None:
        if (wanted := self._waiting.get(export_id)) is not None:
            return settle(wanted, True)
        self._early[export_id] = None
        while len(self._early) > _REMEMBERED:
            self._early.popitem(last=False)
