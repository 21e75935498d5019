"""Delay prompts at a prefill replica until the decode replica has room for their blocks and requests them.

Blocks that were computed earlier would only occupy the cache, and might be evicted by the next prompt's. The coroutine
runs in one event loop; threads of the KV exchange report requested exports.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import Protocol

from inflight.engine.event_stream import set_outcome

_MAX_EARLY = 4096  # exports remembered that were requested before their prompts arrived


class Exchange(Protocol):
    """The part of the KV exchange that is needed here."""

    def when_wanted(self, callback: Callable[[str], None], /) -> None:
        """Call back, in any thread, with the id of each export that a peer requests before it has begun."""


class WantedPrompts:
    """The exports that decode replicas have requested, and the prompts that wait for a request."""

    def __init__(self, exchange: Exchange):
        """Register with the exchange, before any peer can send requests."""
        self._lock = threading.Lock()  # guards the two below
        self._early: OrderedDict[str, None] = OrderedDict()
        self._waiting: dict[str, asyncio.Future[bool]] = {}
        exchange.when_wanted(self._requested)

    async def wait(self, export_id: str, seconds: float) -> bool:
        """Wait until a peer requests the export; return False after `seconds` without a request, or if abandoned."""
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

    def abandon(self, export_id: str) -> None:
        """End the wait for an export whose request was aborted. Call it in the event loop."""
        if (wanted := self._waiting.get(export_id)) is not None:
            set_outcome(wanted, False)

    def _requested(self, export_id: str) -> None:
        with self._lock:
            wanted = self._waiting.get(export_id)
            if wanted is None:
                self._early[export_id] = None
                while len(self._early) > _MAX_EARLY:
                    self._early.popitem(last=False)
                return
        with contextlib.suppress(RuntimeError):  # the event loop is closed
            wanted.get_loop().call_soon_threadsafe(set_outcome, wanted, True)
