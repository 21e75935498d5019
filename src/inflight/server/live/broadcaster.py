"""Broadcasts frames to viewers: fetches them while there are viewers, and stores the last ones.

One frame is made for all viewers. A viewer that is slower than the frames gets the latest, and its page shows a gap.
Without viewers the source is left, and nothing is computed. A tenant sees its own requests, and others' without names,
prompt lengths and accounts, so that the picture is complete.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import time
from collections import deque
from collections.abc import AsyncGenerator, Callable

import msgspec
from msgspec.structs import replace

from inflight.counted import counted
from inflight.engine.event_stream import EngineStopped
from inflight.live.engine_feed import account_of
from inflight.live.frames import Account, Ended, Frame, Hello, Problem, RequestInfo, encode
from inflight.server.errors import ApiError
from inflight.server.live.sources import FeedSource
from inflight.server.tenants import Tenant

MAX_FRAMES = 600  # stored for viewers that connect again
MAX_FRAME_BYTES = 16 << 20
MAX_VIEWERS = 64
UNWATCHED_SECONDS = 5.0  # that frames are still made after the last viewer left: it may load the page again
BEHIND = 30  # frames; a viewer that is further behind gets the latest

log = logging.getLogger("inflight.server")


class _Stored:
    """A frame, or an engine's hello, and its encodings. number: rises by one, over all engines."""

    __slots__ = ("data", "message", "number")

    def __init__(self, message: Hello | Frame, number: int):
        self.message, self.number = message, number
        self.data: dict[str | None, bytes] = {}  # tenant → its view; None: the whole message

    def written(self, server: str, tenant: str | None) -> bytes:
        found = self.data.get(tenant)
        if found is None:
            message = self.message if tenant is None else _view(self.message, tenant)
            found = self.data[tenant] = _event(encode(message), f"{server}-{self.number}")
        return found


def _latest_of(behind: list[_Stored], engines: int) -> list[_Stored]:
    """Return the latest frames, with hellos before them, where these are too many."""
    if len(behind) <= BEHIND * engines:
        return behind
    return [one for one in behind[:-engines] if isinstance(one.message, Hello)] + behind[-engines:]


def _view(message: Hello | Frame, tenant: str) -> Hello | Frame:
    return frame_for(message, tenant) if isinstance(message, Frame) else hello_for(message, tenant)


class FeedBroadcaster:
    def __init__(self, source: Callable[[], FeedSource | None], ends: Callable[[], bool]):
        """source: None while there is no engine to show. ends: whether the server ends, and viewers are to leave."""
        self._source_of, self._ends = source, ends
        self._server = secrets.token_hex(4)
        self._stored: deque[_Stored] = deque()
        self._stored_bytes = 0
        self._number = 0  # of the last stored message
        self._viewers = 0
        self._left_at = 0.0
        self._changed = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._problem: Problem | None = None

    @property
    def viewers(self) -> int:
        return self._viewers

    def enter(self) -> None:
        """Count a viewer until `leave`. Raises ApiError 503 where no engine is loaded, 429 where there are too many."""
        if self._source_of() is None:
            raise ApiError(503, "The model is not loaded yet; try again in 1 s.", code="loading", retry_after=1.0)
        if self._viewers >= MAX_VIEWERS:
            raise ApiError(
                429,
                f"{counted(self._viewers, 'viewer is', 'viewers are')} connected, the maximum; close one.",
                type="rate_limit_error",
                code="too_many_viewers",
                retry_after=5.0,
            )
        self._viewers += 1

    def leave(self) -> None:
        self._viewers -= 1
        self._left_at = time.monotonic()

    async def account(self, tenant: Tenant, request_id: str) -> Account:
        """Return the account of a request in flight.

        Raises:
            ApiError: 404 where the tenant has no such request in flight, 503 where the engine has stopped.
        """
        source = self._source_of()
        try:
            living = None if source is None else await source.living(request_id)
        except EngineStopped as stopped:
            raise ApiError(503, str(stopped), code="stopped") from None
        if living is None or not (tenant.operator or living.tenant == tenant.name):
            raise ApiError(404, "No such request in flight, or it is another tenant's.", code="not_found")
        return account_of(living.timings)

    async def stream(self, tenant: Tenant, last_event_id: str | None) -> AsyncGenerator[bytes]:
        """Yield events for a viewer that has entered, from behind the given one as far as they are stored."""
        source = self._source_of()
        assert source is not None, "entered"
        view = None if tenant.operator else tenant.name
        self._begin(source)
        if not self._stored:
            await self._changed.wait()
        # The frames' task may have ended without a frame, and another viewer have started it again.
        position = max(-1, self._latest() - 1)
        if view is None:
            position = self._position_behind(last_event_id, position)
        for hello in source.hellos():
            greeting = replace(hello, server=self._server)
            yield _event(encode(greeting if view is None else hello_for(greeting, view)))
        while True:
            behind = [one for one in self._stored if one.number > position]
            if len(behind) > BEHIND and last_event_id is None:
                behind = _latest_of(behind, len(source.hellos()))
            for one in behind:
                yield one.written(self._server, view)
                position = one.number
            last_event_id = None
            if self._problem is not None:
                yield _event(encode(self._problem))
                return
            if self._ends():
                return
            self._begin(source)
            if self._latest() <= position:
                await self._changed.wait()

    def _begin(self, source: FeedSource) -> None:
        """Make frames, unless a task does already."""
        if self._task is None or self._task.done():
            self._problem = None
            self._task = asyncio.ensure_future(self._run(source))

    def _position_behind(self, last_event_id: str | None, otherwise: int) -> int:
        server, _, number = (last_event_id or "").partition("-")
        if server == self._server and number.isascii() and number.isdigit() and len(number) < 16:
            return int(number)
        return otherwise

    def _latest(self) -> int:
        return self._stored[-1].number if self._stored else -1

    async def _run(self, source: FeedSource) -> None:
        try:
            while self._is_watched() and not self._ends():
                began = time.monotonic()
                for message in await source.news():
                    self._store(message)
                self._notify()
                await asyncio.sleep(max(0.01, source.period - (time.monotonic() - began)))
        except EngineStopped as stopped:
            self._problem = Problem(str(stopped))
        except Exception as fault:
            log.exception("the live feed ends by a fault; the server goes on")
            self._problem = Problem(f"The feed ended by a fault ({type(fault).__name__}); see the server log.")
        finally:
            self._stored.clear()
            self._stored_bytes = 0
            with contextlib.suppress(EngineStopped):
                await source.leave()
            # After the task's end, so that viewers that wait start another.
            asyncio.get_running_loop().call_soon(self._notify)

    def _is_watched(self) -> bool:
        return self._viewers > 0 or time.monotonic() - self._left_at < UNWATCHED_SECONDS

    def _store(self, message: Hello | Frame) -> None:
        self._number += 1
        if isinstance(message, Hello):
            message = replace(message, server=self._server)
        kept = _Stored(message, self._number)
        self._stored.append(kept)
        self._stored_bytes += len(kept.written(self._server, None))
        while len(self._stored) > MAX_FRAMES or self._stored_bytes > MAX_FRAME_BYTES:
            self._stored_bytes -= len(self._stored.popleft().written(self._server, None))

    def _notify(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()


def _event(data: bytes, event_id: str | None = None) -> bytes:
    """Return a server-sent event; JSON has no line breaks."""
    first = b"" if event_id is None else b"id: " + event_id.encode() + b"\n"
    return first + b"data: " + data + b"\n\n"


def hello_for(hello: Hello, tenant: str) -> Hello:
    """Return a hello without settings and records, which only the operator may see."""
    return msgspec.structs.replace(
        hello,
        sees_all=False,
        tenant=tenant,
        has_record=False,
        settings=[],
        requests=[info_for(one, tenant) for one in hello.requests],
    )


def frame_for(frame: Frame, tenant: str) -> Frame:
    return msgspec.structs.replace(
        frame,
        requests=[info_for(one, tenant) for one in frame.requests],
        ended=[ended_for(one, tenant) for one in frame.ended],
    )


def info_for(info: RequestInfo, tenant: str) -> RequestInfo:
    if info.tenant == tenant:
        return info
    return RequestInfo(info.number, lane=info.lane, arrival=info.arrival, mine=False)


def ended_for(ended: Ended, tenant: str) -> Ended:
    if ended.info.tenant == tenant:
        return ended
    return Ended(info_for(ended.info, tenant), "", ended.at)
