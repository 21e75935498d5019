"""Sources of a server's frames: the engine of this process, and its frames for servers in other processes."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import Sequence
from typing import Protocol

from msgspec.structs import replace

from inflight.engine.bridge import AsyncBridge
from inflight.engine.event_stream import EngineStopped
from inflight.live.distant import NO_ANSWER, FeedAnswer, FeedQuery, decode_query, encode
from inflight.live.engine_feed import EngineFeed, Living, SlotInfo
from inflight.live.frames import Frame, Hello

PERIOD, IDLE_PERIOD = 0.1, 0.5  # seconds between two frames; where nothing happens


class FeedSource(Protocol):
    """A source of frames. All methods are called in the server's event loop, one after the other."""

    def hellos(self) -> Sequence[Hello]:
        """Return the first messages for a new viewer: one for the whole server, and one for each of several engines.

        They hold the requests of frames so far. The sender fills in `server`.
        """

    async def news(self) -> Sequence[Hello | Frame]:
        """Return the messages since the last call. Raises EngineStopped."""

    @property
    def period(self) -> float:
        """Return seconds until the next call of `news`."""

    async def leave(self) -> None:
        """Free what is stored for frames, until the next one is requested."""

    async def living(self, request_id: str) -> Living | None:
        """Return a request in flight; None where there is none of this id. Raises EngineStopped."""


class EngineSource:
    """A `FeedSource` of an engine of this process."""

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

    async def slots(self) -> list[SlotInfo]:
        """Return the request slots in use. Raises EngineStopped."""
        return await self._bridge.ask(self._feed.slots)


MAX_FRAMES = 40  # stored
UNREAD_SECONDS = 5.0  # after which the engine is left
MIN_SECONDS = 0.09  # between two frames


class FrameCache:
    """An engine's last frames, for readers in other processes, each of which reads at its own pace.

    A frame is made when a reader asks and the last one is old enough. Without a reader the engine is left.
    """

    def __init__(self, source: EngineSource | None):
        """source: None: the engine has no live page."""
        self._source = source
        self._frames: deque[Frame] = deque(maxlen=MAX_FRAMES)
        self._made_at = self._asked_at = 0.0
        self._lock = asyncio.Lock()
        self._watching: asyncio.Task[None] | None = None

    async def shown(self, asked: FeedQuery, name: str = "") -> FeedAnswer:
        """Answer a query. name: the reader's for this engine."""
        if self._source is None:
            return NO_ANSWER
        try:
            if asked.slots:
                return FeedAnswer(self._source.hello(), slots=await self._source.slots())
            if asked.request_id:
                return FeedAnswer(living=await self._source.living(asked.request_id))
            return await self._frames_behind(self._source, asked.behind.get(name, -1))
        except EngineStopped:
            return NO_ANSWER

    async def answer(self, data: bytes, name: str = "") -> bytes:
        """Answer an encoded query. Raises ValueError where it is none."""
        return encode(await self.shown(decode_query(data), name))

    async def _frames_behind(self, source: EngineSource, behind: int) -> FeedAnswer:
        """Return the frames behind that number, of which one may be made now. Raises EngineStopped."""
        self._asked_at = time.monotonic()
        async with self._lock:
            if self._asked_at - self._made_at >= MIN_SECONDS:
                self._frames.append(await source.frame())
                self._made_at = time.monotonic()
            if self._watching is None or self._watching.done():
                self._watching = asyncio.ensure_future(self._leave_when_unread(source))
            if not max(0, self._frames[0].number - 1) <= behind <= self._frames[-1].number:
                return FeedAnswer(source.hello(), [self._frames[-1]])
            return FeedAnswer(None, [one for one in self._frames if one.number > behind])

    async def _leave_when_unread(self, source: EngineSource) -> None:
        while (left := self._asked_at + UNREAD_SECONDS - time.monotonic()) > 0:
            await asyncio.sleep(left)
        async with self._lock:
            self._frames.clear()
            with contextlib.suppress(EngineStopped):
                await source.leave()
