"""An engine client whose engine is many: each request goes to the replica that the router chooses.

A replica that is lost takes with it only what it had begun to answer: its streams end with a sentence, and what had no
token yet goes to another one, which computes the same tokens. Lives in one event loop.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from typing import Protocol

from inflight.cli.replicas.routed_frame import RoutedFrame
from inflight.cli.replicas.routing_board import RoutingBoard
from inflight.core.types.events import TokensEvent
from inflight.core.types.request import Request, RequestRefused
from inflight.engine.event_stream import EngineStopped, EventStream
from inflight.engine.remote.messages import Accepted, Happened, MessageError, Open, Refused, decode_from_engine, encode
from inflight.routing.routed_request import RoutedRequest

TRIES = 5  # of a request that no replica has begun to answer
PAUSE_SECONDS = 0.2  # between two of them, in which Ray may notice who is gone

log = logging.getLogger("inflight.server")


class ReplicaLost(RuntimeError):
    """It answers no more; the sentence says why."""


class Answer(Protocol):
    """The bytes of one request's messages; a replica that is lost raises ReplicaLost."""

    def __aiter__(self) -> AsyncIterator[bytes]: ...

    def cancel(self) -> None:
        """Nobody reads it any more."""


Ask = Callable[[RoutedFrame], Answer]


class ReplicatedEngine:
    """An `inflight.engine.client.EngineClient`."""

    def __init__(self, ask: Ask, board: RoutingBoard, clock_zero: float, closed: Callable[[], None]):
        """clock_zero: where the clock began by which requests' arrivals are told, on this machine's monotonic clock.
        closed: told that nothing is asked any more."""
        self._ask, self._board, self._zero, self._closed = ask, board, clock_zero, closed
        self._tasks: dict[EventStream, list[asyncio.Task[None]]] = {}
        self._stopped: str | None = None
        self._loop = asyncio.get_running_loop()

    async def open(self, *requests: Request) -> EventStream:
        if self._stopped is not None:
            raise EngineStopped(self._stopped)
        stream = EventStream(requests, self._left)
        accepted = _Accepted(stream, len(requests))
        self._tasks[stream] = [self._loop.create_task(self._follow(stream, accepted, one)) for one in requests]
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
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self.stop, "The server was closed.")
        self._stopped = self._stopped or "The server was closed."
        self._closed()

    def stop(self, why: str) -> None:
        """No replica can be reached any more, and none will be: a sentence. In the event loop."""
        self._stopped = self._stopped or why
        for stream in tuple(self._tasks):
            stream.break_off(EngineStopped(self._stopped))
            self._left(stream)

    def _left(self, stream: EventStream) -> None:
        for task in self._tasks.pop(stream, ()):
            task.cancel()

    async def _follow(self, stream: EventStream, accepted: _Accepted, request: Request) -> None:
        """One request, from replica to replica, until it has ended."""
        following = _Following(stream, accepted, request)
        try:
            for left in reversed(range(TRIES)):
                try:
                    return await self._ask_once(following)
                except (ReplicaLost, MessageError) as fault:
                    if following.begun or not left:
                        return following.lost(fault)
                    await asyncio.sleep(PAUSE_SECONDS)
        except Exception as fault:  # a mistake here; nobody may wait for ever
            log.exception("a request could not be followed")
            following.lost(fault)
        finally:
            self._board.ended(request.request_id, following.tokens or None)
            if not stream.alive:
                self._tasks.pop(stream, None)

    async def _ask_once(self, following: _Following) -> None:
        """Raises ReplicaLost, MessageError."""
        request = following.request
        age = time.monotonic() - self._zero - request.arrival
        data = encode(Open(0, (replace(request, arrival=-age),)))
        answer = self._ask(RoutedFrame(data, RoutedRequest.of(request)))
        try:
            async for frame in answer:
                message = decode_from_engine(frame)
                if isinstance(message, Happened):
                    following.happened(message)
                    self._board.first_token(request.request_id)
                elif isinstance(message, Accepted):
                    following.taken_in()
                elif isinstance(message, Refused):
                    return following.refused(message)
                else:
                    raise ReplicaLost(message.sentence)
        finally:
            answer.cancel()
        if not following.ended:
            raise ReplicaLost("It ended its answer before the request had ended.")


class _Accepted:
    """All requests of a stream are taken in, or none."""

    def __init__(self, stream: EventStream, missing: int):
        self._stream, self._missing = stream, missing

    def one_more(self) -> None:
        self._missing -= 1
        if not self._missing:
            self._stream.accept(None)


class _Following:
    """How far a request is. tokens: that have come. begun: something was told, which must not be told again."""

    def __init__(self, stream: EventStream, accepted: _Accepted, request: Request):
        self.stream, self.request = stream, request
        self.tokens = 0
        self.begun = self.ended = False
        self._accepted: _Accepted | None = accepted

    def taken_in(self) -> None:
        """By the first replica, or by another one in its place."""
        accepted, self._accepted = self._accepted, None
        if accepted is not None:
            accepted.one_more()

    def happened(self, message: Happened) -> None:
        events = message.events()
        self.begun = self.begun or bool(events)
        self.tokens += sum(len(one.token_ids) for one in events if isinstance(one, TokensEvent))
        self.ended = self.ended or bool(message.finished)
        self.stream.put(events)

    def refused(self, message: Refused) -> None:
        self.ended = True
        self._fail(RequestRefused(message.sentence, message.retry_after, field=message.field, code=message.code))

    def lost(self, fault: Exception) -> None:
        begun = "while it answered" if self.begun else f"{TRIES} times before a token had come"
        self._fail(EngineStopped(f"A replica was lost {begun} ({fault}); ask again, others are there."))

    def _fail(self, fault: Exception) -> None:
        if self.stream.accepted.done():
            self.stream.break_off(fault)
        else:
            self.stream.accept(fault)
