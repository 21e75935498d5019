"""The hub: asks for frames while somebody looks, keeps the last ones, and gives them to whoever looks.

Knows viewers and how far each is; not what is in a frame. One frame is made for all of them. Who is slower than the
frames come gets the latest, and the page shows a gap. Nobody looks: the source is left, and nothing is computed.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import time
from collections import deque
from collections.abc import AsyncGenerator, Callable

from msgspec.structs import replace

from inflight.counted import counted
from inflight.engine.event_stream import EngineStopped
from inflight.live.engine_feed import account_of
from inflight.live.frames import Account, Frame, Hello, Problem, encode
from inflight.live.views import frame_for, hello_for
from inflight.server.errors import ApiError
from inflight.server.live.sources import FeedSource
from inflight.server.tenants import Tenant

KEPT = 600  # frames, for those who come back
KEPT_BYTES = 16 << 20
MOST_VIEWERS = 64
LINGER_SECONDS = 5.0  # that frames are still made when the last viewer went away: a page that is loaded anew
BEHIND = 30  # frames; who is further behind while frames come gets the latest

log = logging.getLogger("inflight.server")


class _Kept:
    """A frame, or an engine's hello, and what was written of it so far. number: rises by one, whichever engine's."""

    __slots__ = ("data", "message", "number")

    def __init__(self, message: Hello | Frame, number: int):
        self.message, self.number = message, number
        self.data: dict[str | None, bytes] = {}  # tenant → its view; None: all of it

    def written(self, server: str, tenant: str | None) -> bytes:
        found = self.data.get(tenant)
        if found is None:
            message = self.message if tenant is None else _view(self.message, tenant)
            found = self.data[tenant] = _event(encode(message), f"{server}-{self.number}")
        return found


def _latest_of(behind: list[_Kept], engines: int) -> list[_Kept]:
    """Their latest frames, with hellos before them, where these are too many."""
    if len(behind) <= BEHIND * engines:
        return behind
    return [one for one in behind[:-engines] if isinstance(one.message, Hello)] + behind[-engines:]


def _view(message: Hello | Frame, tenant: str) -> Hello | Frame:
    return frame_for(message, tenant) if isinstance(message, Frame) else hello_for(message, tenant)


class LiveHub:
    def __init__(self, source: Callable[[], FeedSource | None], ends: Callable[[], bool]):
        """source: None while there is nothing to be seen. ends: whether the server ends, and viewers are to go."""
        self._source_of, self._ends = source, ends
        self._server = secrets.token_hex(4)
        self._kept: deque[_Kept] = deque()
        self._kept_bytes = 0
        self._number = 0  # of the last that was kept
        self._viewers = 0
        self._left_at = 0.0
        self._news = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._problem: Problem | None = None

    @property
    def viewers(self) -> int:
        return self._viewers

    def enter(self) -> None:
        """One more looks, until `leave`. Raises ApiError 503 where there is nothing yet, 429 where too many do."""
        if self._source_of() is None:
            raise ApiError(503, "Nothing is loaded yet; try again in a moment.", code="loading", retry_after=1.0)
        if self._viewers >= MOST_VIEWERS:
            raise ApiError(
                429,
                f"{counted(self._viewers, 'viewer looks', 'viewers look')} already, as many as may; close a page.",
                type="rate_limit_error",
                code="too_many_viewers",
                retry_after=5.0,
            )
        self._viewers += 1

    def leave(self) -> None:
        self._viewers -= 1
        self._left_at = time.monotonic()

    async def account(self, tenant: Tenant, request_id: str) -> Account:
        """Where a living request's time went until now. Raises ApiError 404 where none of that name lives that the
        tenant may see, 503 where the engine works no more."""
        source = self._source_of()
        try:
            living = None if source is None else await source.living(request_id)
        except EngineStopped as stopped:
            raise ApiError(503, str(stopped), code="stopped") from None
        if living is None or not (tenant.operator or living.tenant == tenant.name):
            raise ApiError(404, "No request of that name lives here, or it is another's.", code="not_found")
        return account_of(living.timings)

    async def stream(self, tenant: Tenant, last_event_id: str | None) -> AsyncGenerator[bytes]:
        """Events for one viewer who has entered; from behind the given one, as far as it is kept."""
        source = self._source_of()
        assert source is not None, "entered"
        view = None if tenant.operator else tenant.name
        self._begin(source)
        if not self._kept:
            await self._news.wait()
        place = self._latest() - 1
        if view is None:
            place = self._place_behind(last_event_id, place)
        for hello in source.hellos():
            greeting = replace(hello, server=self._server)
            yield _event(encode(greeting if view is None else hello_for(greeting, view)))
        while True:
            behind = [one for one in self._kept if one.number > place]
            if len(behind) > BEHIND and last_event_id is None:
                behind = _latest_of(behind, len(source.hellos()))
            for one in behind:
                yield one.written(self._server, view)
                place = one.number
            last_event_id = None
            if self._problem is not None:
                yield _event(encode(self._problem))
                return
            if self._ends():
                return
            self._begin(source)
            if self._latest() <= place:
                await self._news.wait()

    def _begin(self, source: FeedSource) -> None:
        """Frames are made, unless they are already."""
        if self._task is None or self._task.done():
            self._problem = None
            self._task = asyncio.ensure_future(self._run(source))

    def _place_behind(self, last_event_id: str | None, otherwise: int) -> int:
        server, _, number = (last_event_id or "").partition("-")
        if server == self._server and number.isascii() and number.isdigit() and len(number) < 16:
            return int(number)
        return otherwise

    def _latest(self) -> int:
        return self._kept[-1].number if self._kept else -1

    async def _run(self, source: FeedSource) -> None:
        try:
            while self._is_looked_at() and not self._ends():
                began = time.monotonic()
                for message in await source.news():
                    self._keep(message)
                self._tell()
                await asyncio.sleep(max(0.01, source.period - (time.monotonic() - began)))
        except EngineStopped as stopped:
            self._problem = Problem(str(stopped))
        except Exception as fault:
            log.exception("the live feed ends by a fault; the server goes on")
            self._problem = Problem(f"The feed ended by a fault ({type(fault).__name__}); the server's log has it.")
        finally:
            self._kept.clear()
            self._kept_bytes = 0
            with contextlib.suppress(EngineStopped):
                await source.leave()
            asyncio.get_running_loop().call_soon(self._tell)  # behind the task's end, so that who waits begins it anew

    def _is_looked_at(self) -> bool:
        return self._viewers > 0 or time.monotonic() - self._left_at < LINGER_SECONDS

    def _keep(self, message: Hello | Frame) -> None:
        self._number += 1
        if isinstance(message, Hello):
            message = replace(message, server=self._server)
        kept = _Kept(message, self._number)
        self._kept.append(kept)
        self._kept_bytes += len(kept.written(self._server, None))
        while len(self._kept) > KEPT or self._kept_bytes > KEPT_BYTES:
            self._kept_bytes -= len(self._kept.popleft().written(self._server, None))

    def _tell(self) -> None:
        self._news.set()
        self._news = asyncio.Event()


def _event(data: bytes, event_id: str | None = None) -> bytes:
    """A server-sent event; JSON has no line breaks."""
    first = b"" if event_id is None else b"id: " + event_id.encode() + b"\n"
    return first + b"data: " + data + b"\n\n"
