"""The frame shelf: an engine's frames for those in other processes who ask, several perhaps, and each in its own time.

Knows one engine's source. A frame is made when somebody asks and the last one is old enough; the last ones are kept, so
that all see the same. Nobody has asked for a while: the engine is left, and nothing is computed.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import deque

from inflight.engine.event_stream import EngineStopped
from inflight.live.distant import NOTHING, Asked, Shown, decode_asked, encode
from inflight.live.frames import Frame
from inflight.server.live.sources import EngineSource

KEPT = 40  # frames
LINGER_SECONDS = 5.0
LEAST_SECONDS = 0.09  # between two frames


class FrameShelf:
    def __init__(self, source: EngineSource | None):
        """source: None: the engine shows itself to nobody."""
        self._source = source
        self._kept: deque[Frame] = deque(maxlen=KEPT)
        self._made_at = self._asked_at = 0.0
        self._turn = asyncio.Lock()
        self._watching: asyncio.Task[None] | None = None

    async def shown(self, asked: Asked, name: str = "") -> Shown:
        """name: that whoever asks has for this engine."""
        if self._source is None:
            return NOTHING
        try:
            if asked.request_id:
                return Shown(living=await self._source.living(asked.request_id))
            return await self._frames(self._source, asked.behind.get(name, -1))
        except EngineStopped:
            return NOTHING

    async def answer(self, data: bytes, name: str = "") -> bytes:
        """The same as they travel. Raises ValueError for what is no question."""
        return encode(await self.shown(decode_asked(data), name))

    async def _frames(self, source: EngineSource, behind: int) -> Shown:
        """Raises EngineStopped."""
        self._asked_at = time.monotonic()
        async with self._turn:
            if self._asked_at - self._made_at >= LEAST_SECONDS:
                self._kept.append(await source.frame())
                self._made_at = time.monotonic()
            if self._watching is None or self._watching.done():
                self._watching = asyncio.ensure_future(self._until_nobody_asks(source))
            if not max(0, self._kept[0].number - 1) <= behind <= self._kept[-1].number:
                return Shown(source.hello(), [self._kept[-1]])
            return Shown(None, [one for one in self._kept if one.number > behind])

    async def _until_nobody_asks(self, source: EngineSource) -> None:
        while (left := self._asked_at + LINGER_SECONDS - time.monotonic()) > 0:
            await asyncio.sleep(left)
        async with self._turn:
            self._kept.clear()
            with contextlib.suppress(EngineStopped):
                await source.leave()
