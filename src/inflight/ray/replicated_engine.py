"""An engine client whose engine is many: each request goes to the replica that the router chooses.

A replica that is lost takes with it only what it had begun to answer: its streams end with a sentence, and what had no
token yet goes to another one, which computes the same tokens. Lives in one event loop.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from msgspec import structs

from inflight.core.types.events import Event, FinishedEvent, TokensEvent
from inflight.core.types.request import Request, RequestRefused
from inflight.engine.event_stream import EngineStopped, EventStream
from inflight.engine.remote.messages import Refused
from inflight.ray.replica_links import Links
from inflight.ray.routing_board import RoutingBoard
from inflight.routing.routed_request import RoutedRequest

TRIES = 5  # of a request that no replica has begun to answer
PAUSE_SECONDS = 0.2  # between two of them, in which Ray may notice who is gone
FULL_SECONDS = 60.0  # for which a request that was lost waits for room at the others
FULL_PAUSE_SECONDS = 1.0  # after which it asks them again, at most


class ReplicatedEngine:
    """An `inflight.engine.protocols.EngineClient`."""

    def __init__(self, links: Links, board: RoutingBoard, clock_zero: float, closed: Callable[[], None]):
        """clock_zero: where the clock began by which requests' arrivals are told, on this machine's monotonic clock.
        closed: told that nothing is asked any more."""
        self.links, self.board, self._zero, self._closed = links, board, clock_zero, closed
        self._following: dict[EventStream, list[_Following]] = {}
        self._stopped: str | None = None
        self.loop = asyncio.get_running_loop()

    async def open(self, *requests: Request) -> EventStream:
        if self._stopped is not None:
            raise EngineStopped(self._stopped)
        stream = EventStream(requests, self._left)
        accepted = _Accepted(stream, len(requests))
        following = self._following[stream] = [_Following(self, stream, accepted, one) for one in requests]
        for one in following:
            one.ask()
        try:
            await stream.accepted
        except BaseException:
            self._left(stream)
            raise
        return stream

    @property
    def stopped(self) -> str | None:
        """Replicas that are lost are replaced."""
        return self._stopped

    def close(self) -> None:
        if not self.loop.is_closed():
            self.loop.call_soon_threadsafe(self._close)
        self._stopped = self._stopped or "The server was closed."
        self._closed()

    def stop(self, why: str) -> None:
        """No replica can be reached any more, and none will be: a sentence. In the event loop."""
        self._stopped = self._stopped or why
        for stream in tuple(self._following):
            stream.fail(EngineStopped(self._stopped))
            self._left(stream)

    def age(self, request: Request) -> float:
        """Seconds since it arrived."""
        return time.monotonic() - self._zero - request.arrival

    def ended(self, stream: EventStream) -> None:
        """One of its requests has. Where one was refused, all are left."""
        if not stream.alive:
            self._left(stream)

    def _close(self) -> None:
        self.stop("The server was closed.")
        self.links.close()

    def _left(self, stream: EventStream) -> None:
        for one in self._following.pop(stream, ()):
            one.leave()


class _Accepted:
    """All requests of a stream are taken in, or none."""

    def __init__(self, stream: EventStream, missing: int):
        self._stream, self._missing = stream, missing

    def one_more(self) -> None:
        self._missing -= 1
        if not self._missing:
            self._stream.accept(None)


class _Following:
    """One request, from replica to replica, until it has ended. A `Told` of its link."""

    def __init__(self, engine: ReplicatedEngine, stream: EventStream, accepted: _Accepted, request: Request):
        self._engine, self._stream, self._request = engine, stream, request
        self._routed = RoutedRequest.of(request)
        self._tokens = 0  # that have come
        self._begun = False  # something was told, which must not be told again
        self._tries, self._over = TRIES, False
        self._accepted: _Accepted | None = accepted
        self._lost_at: float | None = None

    def ask(self) -> None:
        """Another time, where it was lost."""
        if not self._over:
            self._tries -= 1
            request = structs.replace(self._request, arrival=-self._engine.age(self._request))
            self._engine.links.ask(request, self._routed, self)

    def leave(self) -> None:
        if not self._over:
            self._engine.links.leave(self._request.request_id)
            self._end()

    def chosen(self, replica: str) -> None:
        """The router has counted it."""

    def accepted(self) -> None:
        """By the first replica, or by another one in its place."""
        accepted, self._accepted = self._accepted, None
        if accepted is not None:
            accepted.one_more()

    def happened(self, events: list[Event]) -> None:
        if not self._begun:
            self._begun = True
            self._engine.board.first_token(self._request.request_id)
        self._tokens += sum(len(one.token_ids) for one in events if isinstance(one, TokensEvent))
        self._stream.put(events)
        if isinstance(events[-1], FinishedEvent):
            self._end()

    def refused(self, refusal: Refused) -> None:
        if self._lost_at is None:
            fault = RequestRefused(refusal.sentence, refusal.retry_after, field=refusal.field, code=refusal.code)
            return self._fail(fault)
        # It was taken in already, by a replica that was lost.
        if refusal.retry_after is None or self._engine.loop.time() - self._lost_at > FULL_SECONDS:
            why = f"A replica was lost before it answered, and no other one takes the request in: {refusal.sentence}"
            return self._fail(EngineStopped(why))
        self._tries += 1
        self._engine.loop.call_later(min(refusal.retry_after, FULL_PAUSE_SECONDS), self.ask)

    def lost(self, why: str) -> None:
        self._lost_at = self._lost_at or self._engine.loop.time()
        if not (self._begun or not self._tries):
            self._engine.loop.call_later(PAUSE_SECONDS, self.ask)
            return
        when = "while it answered" if self._begun else f"{TRIES} times before a token had come"
        self._fail(EngineStopped(f"A replica was lost {when} ({why}); ask again, others are there."))

    def _fail(self, fault: Exception) -> None:
        if self._stream.accepted.done():
            self._stream.fail(fault)
        else:
            self._stream.accept(fault)
        self._end()

    def _end(self) -> None:
        self._over = True
        self._engine.board.ended(self._request.request_id, self._tokens or None)
        self._engine.ended(self._stream)
