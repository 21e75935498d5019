"""Where a server's frames come from, and an engine of this process as such a source; engines that are elsewhere:
`members`.

Knows how the engine is asked; what frames are, `inflight.live` knows.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Protocol

from msgspec.structs import replace

from inflight.engine.bridge import AsyncBridge
from inflight.live.engine_feed import EngineFeed, Living
from inflight.live.frames import Frame, Hello

PERIOD, IDLE_PERIOD = 0.1, 0.5  # seconds between two frames; where nothing happens


class FeedSource(Protocol):
    """All verbs are called in the server's event loop, one after the other."""

    def hellos(self) -> Sequence[Hello]:
        """What whoever looks now is to know: one that says what is shown, and one of each engine where there are
        several; with the requests that frames so far have told of. `server` is filled in by who sends it."""

    async def news(self) -> Sequence[Hello | Frame]:
        """What has happened since the last time. Raises EngineStopped."""

    @property
    def period(self) -> float:
        """Seconds until it makes sense to ask for the next one."""

    async def leave(self) -> None:
        """Nobody looks any more: nothing is kept until the next frame is asked for."""

    async def living(self, request_id: str) -> Living | None:
        """How it is with a request; None: it does not live here. Raises EngineStopped."""


class EngineSource:
    """An engine of this process, a `FeedSource`."""

    def __init__(self, bridge: AsyncBridge, feed: EngineFeed, about: Hello):
        self._bridge, self._feed, self._about = bridge, feed, about
        self._is_idle = False

    def hello(self) -> Hello:
        return replace(self._about, requests=self._feed.shown_requests)

    def hellos(self) -> Sequence[Hello]:
        return (self.hello(),)

    @property
    def period(self) -> float:
        return IDLE_PERIOD if self._is_idle else PERIOD

    async def frame(self) -> Frame:
        look = await self._bridge.ask(self._feed.look)
        self._is_idle = not look.entries and not look.dump.running
        return await asyncio.to_thread(lambda: self._feed.frame(look))

    async def news(self) -> Sequence[Frame]:
        return (await self.frame(),)

    async def leave(self) -> None:
        await self._bridge.ask(self._feed.leave)

    async def living(self, request_id: str) -> Living | None:
        return await self._bridge.ask(lambda: self._feed.living(request_id))
