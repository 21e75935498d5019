"""Prompts that a prefill replica is to compute wait until the decode replica has room for their blocks and asks for
them: what is computed earlier would only lie here, and give way to the next.

Knows exports by id: which are asked for, and who waits for that. Its coroutine runs in one event loop; that blocks are
asked for is told by threads of the exchange.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import Protocol

from inflight.engine.event_stream import set_outcome

_REMEMBERED = 4096  # that were asked for before their prompts came


class Exchange(Protocol):
    def when_wanted(self, told: Callable[[str], None]) -> None:
        """Has it told of each export that a peer asks for before it has begun, in any thread."""


class WantedPrompts:
    def __init__(self, exchange: Exchange):
        """Before any peer can ask."""
        self._lock = threading.Lock()  # of what follows
        self._early: OrderedDict[str, None] = OrderedDict()
        self._waiting: dict[str, asyncio.Future[bool]] = {}
        exchange.when_wanted(self._told)

    async def is_wanted(self, export_id: str, seconds: float) -> bool:
        """Once somebody has asked for it; False: nobody did for so long, or it is left."""
        loop = asyncio.get_running_loop()
        wanted: asyncio.Future[bool] = loop.create_future()
        with self._lock:
            if self._early.pop(export_id, self) is None:
                return True
            self._waiting[export_id] = wanted
        timer = loop.call_later(seconds, set_outcome, wanted, False)
        try:
            await wanted
        finally:
            timer.cancel()
            with self._lock:
                del self._waiting[export_id]
        return wanted.result()

    def left(self, export_id: str) -> None:
        """Nobody will. In the event loop."""
        if (wanted := self._waiting.get(export_id)) is not None:
            set_outcome(wanted, False)

    def _told(self, export_id: str) -> None:
        with self._lock:
            wanted = self._waiting.get(export_id)
            if wanted is None:
                self._early[export_id] = None
                while len(self._early) > _REMEMBERED:
                    self._early.popitem(last=False)
                return
        with contextlib.suppress(RuntimeError):  # the event loop is closed
            wanted.get_loop().call_soon_threadsafe(set_outcome, wanted, True)
