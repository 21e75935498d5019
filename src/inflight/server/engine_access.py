"""Read what the engines do, and drop their cached prefixes, for routes."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from inflight.engine.event_stream import EngineStopped
from inflight.live.distant import FeedAnswer, FeedQuery, decode_answer, encode
from inflight.server.errors import ApiError

if TYPE_CHECKING:
    from inflight.server.processes.messages import PrefixCacheReset


@dataclass(frozen=True, slots=True)
class EngineAccess:
    """Ask the engines, and reset their caches.

    Attributes:
        show: Answers an encoded `FeedQuery` with a `FeedAnswer` of each engine, by its name; "": the only one.
        reset: Drops all cached prefixes.
    """

    show: Callable[[bytes], Awaitable[Mapping[str, bytes]]]
    reset: Callable[[], Awaitable[PrefixCacheReset]]

    async def slots(self) -> dict[str, FeedAnswer]:
        """Return the request slots and the settings of each engine that shows them. Raises ApiError 503."""
        try:
            data = await self.show(encode(FeedQuery(slots=True)))
        except EngineStopped as stopped:
            raise ApiError(503, str(stopped), type="server_error", code="loading", retry_after=1.0) from None
        answers = await asyncio.to_thread(lambda: {name: decode_answer(one) for name, one in data.items()})
        return {name: one for name, one in answers.items() if one is not None and one.slots is not None}
