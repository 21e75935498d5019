"""A stream of the events of some requests, in the consumer's event loop, where the bridge calls it too.

Events that the consumer has not taken are buffered, and come in large pieces.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Self, TypeVar

from inflight.core.types.events import Event, FinishedEvent, PooledEvent, TokensEvent
from inflight.core.types.request import Request

CLOSED = "The engine was closed; send the request again once one runs."
PIECE = 1000  # tokens and log-probabilities taken at once; more only where one event has more
T = TypeVar("T")


class EngineStopped(RuntimeError):
    """The engine was closed, or its thread ended by an error; the sentence says which."""


class RequestsLost(EngineStopped):
    """Requests ended with an error of theirs alone: the engine goes on with others."""


class EventStream:
    """Events of requests that were submitted together.

    Each `take`, or step of an iteration, returns the events since the last one, up to `PIECE`, so that a slow consumer
    gets fewer and larger items. The stream ends when every request has; close it early with `aclose`.
    """

    def __init__(self, requests: Sequence[Request], leave: Callable[[EventStream], None]):
        self.loop = asyncio.get_running_loop()
        self.requests = tuple(requests)
        self.accepted: asyncio.Future[None] = self.loop.create_future()
        self.buffered = 0  # tokens and log-probabilities that were not taken
        self.taken = 0  # tokens and log-probabilities that were
        self.on_put: Callable[[int], None] = lambda size: None  # called with those that have come
        self._leave = leave
        self._alive = {request.request_id for request in requests}
        self._events: deque[Event] = deque()
        self._error: Exception | None = None
        self._waiter: asyncio.Future[None] | None = None  # of a consumer that has taken everything

    @property
    def alive(self) -> bool:
        return bool(self._alive)

    @property
    def ended(self) -> bool:
        """Whether every request has ended and all events were taken."""
        return not (self._alive or self._events or self._error)

    async def opened(self) -> Self:
        """Return the stream once its requests are accepted. Raises RequestRefused or EngineStopped."""
        try:
            await self.accepted
        except asyncio.CancelledError:
            await self.aclose()
            raise
        return self

    async def take(self) -> list[Event]:
        """Return the events since the last call; wait for one. Raises EngineStopped, or the error given to `fail`."""
        if self._events:
            await asyncio.sleep(0)  # others run between two pieces
        elif self._error is None:
            await self._wait()
        if self._error is not None and not self._events:
            raise self._error
        return self._piece()

    def _piece(self) -> list[Event]:
        events: list[Event] = []
        size = 0
        while self._events and (not events or size + event_size(self._events[0]) <= PIECE):
            events.append(self._events.popleft())
            size += event_size(events[-1])
        self.buffered -= size
        self.taken += size
        return events

    async def _wait(self) -> None:
        waiter = self._waiter = self.loop.create_future()
        try:
            await waiter
        finally:
            self._waiter = None

    async def __aiter__(self) -> AsyncIterator[list[Event]]:
        """Yield events until the end. Raises EngineStopped."""
        while not self.ended:
            yield await self.take()

    async def aclose(self) -> None:
        """Abort the requests that have not ended; idempotent."""
        if self._alive:
            self._alive.clear()
            self._leave(self)

    # -- called in the consumer's event loop

    def put(self, events: list[Event]) -> None:
        self._events += events
        before = self.buffered
        for event in events:
            self.buffered += event_size(event)
            if isinstance(event, FinishedEvent):
                self._alive.discard(event.request_id)
        self._wake()
        self.on_put(self.buffered - before)

    def accept(self, refusal: Exception | None) -> None:
        """Report that the requests were accepted, or why not."""
        if refusal is not None:
            self._alive.clear()
        set_outcome(self.accepted, refusal)

    def fail(self, error: Exception) -> None:
        """End the stream with an error, behind the events so far."""
        self._error = self._error or error
        self._wake()

    def _wake(self) -> None:
        if self._waiter is not None:
            set_outcome(self._waiter, None)


def event_size(event: Event) -> int:
    """Return the tokens and log-probabilities, numbers of a vector, or ends of samples of an event."""
    if isinstance(event, FinishedEvent):
        return len(event.finishes)
    if isinstance(event, PooledEvent):
        return len(event.vector)
    tokens = len(event.token_ids) if isinstance(event, TokensEvent) else 0
    return tokens + (len(event.logprobs) * (1 + len(event.logprobs[0].top)) if event.logprobs else 0)


def set_outcome(future: asyncio.Future[T], outcome: T | BaseException) -> None:
    """Set the result or exception of a future, unless it was cancelled or has one."""
    if future.done():
        return
    if isinstance(outcome, BaseException):
        future.set_exception(outcome)
    else:
        future.set_result(outcome)
