"""A consumer's side of the bridge: the events of some requests, taken as they come.

Knows its event loop and its requests; lives in the consumer's thread (the bridge calls it there). What is not taken is
kept, and comes in large pieces.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from typing import TypeVar

from inflight.core.types.events import Event, FinishedEvent, PooledEvent, TokensEvent
from inflight.core.types.request import Request

PIECE = 1000  # tokens and log-probabilities that come at once; more only where one event has more
T = TypeVar("T")


class EngineStopped(RuntimeError):
    """The engine was closed, or its thread ended by a fault; the sentence says which."""


class EventStream:
    """The events of some requests that came together. Take from it, or iterate it: each time comes what has happened
    since the last, up to `PIECE`, so that a slow consumer gets fewer and larger items. It ends when every request has;
    leave it early with `aclose`."""

    def __init__(self, requests: Sequence[Request], leave: Callable[[EventStream], None]):
        self.loop = asyncio.get_running_loop()
        self.requests = tuple(requests)
        self.accepted: asyncio.Future[None] = self.loop.create_future()
        self.held = 0  # tokens and log-probabilities that have come and were not taken
        self.taken = 0  # and those that were
        self._leave = leave
        self._alive = {request.request_id for request in requests}
        self._events: deque[Event] = deque()
        self._fault: Exception | None = None
        self._waiter: asyncio.Future[None] | None = None  # of a consumer that has taken everything

    @property
    def alive(self) -> bool:
        """Events may come."""
        return bool(self._alive)

    @property
    def ended(self) -> bool:
        """Every request has ended, and all of it was taken."""
        return not (self._alive or self._events or self._fault)

    async def take(self, patience: float | None = None) -> list[Event]:
        """What has happened since the last time; nothing, if that stays so for `patience` seconds. Raises
        EngineStopped, or what it was broken off with."""
        if self._events:
            await asyncio.sleep(0)  # others have their turn between two pieces
        elif self._fault is None:
            await self._wait(patience)
        if self._fault is not None and not self._events:
            raise self._fault
        return self._piece()

    def _piece(self) -> list[Event]:
        events: list[Event] = []
        size = 0
        while self._events and (not events or size + event_size(self._events[0]) <= PIECE):
            events.append(self._events.popleft())
            size += event_size(events[-1])
        self.held -= size
        self.taken += size
        return events

    async def _wait(self, patience: float | None) -> None:
        """Once for every token of every consumer: a bare timer costs a fraction of asyncio.timeout."""
        waiter = self._waiter = self.loop.create_future()
        timer = None if patience is None else self.loop.call_later(patience, settle, waiter, None)
        try:
            await waiter
        finally:
            self._waiter = None
            if timer is not None:
                timer.cancel()

    async def __aiter__(self) -> AsyncIterator[list[Event]]:
        """Raises EngineStopped."""
        while not self.ended:
            yield await self.take()

    async def aclose(self) -> None:
        """Abort what has not ended. Harmless afterwards."""
        if self._alive:
            self._alive.clear()
            self._leave(self)

    # -- called in the consumer's event loop

    def put(self, events: list[Event]) -> None:
        self._events += events
        for event in events:
            self.held += event_size(event)
            if isinstance(event, FinishedEvent):
                self._alive.discard(event.request_id)
        self._tell()

    def accept(self, refusal: Exception | None) -> None:
        if refusal is not None:
            self._alive.clear()
        settle(self.accepted, refusal)

    def break_off(self, fault: Exception) -> None:
        """After what has come already, nothing comes any more but this."""
        self._fault = self._fault or fault
        self._tell()

    def _tell(self) -> None:
        if self._waiter is not None:
            settle(self._waiter, None)


def event_size(event: Event) -> int:
    """Tokens, and log-probabilities with all their alternatives; numbers of a vector; how each sample ended."""
    if isinstance(event, FinishedEvent):
        return len(event.finishes)
    if isinstance(event, PooledEvent):
        return len(event.vector)
    tokens = len(event.token_ids) if isinstance(event, TokensEvent) else 0
    return tokens + (len(event.logprobs) * (1 + len(event.logprobs[0].top)) if event.logprobs else 0)


def settle(future: asyncio.Future[T], outcome: T | BaseException) -> None:
    """Whoever waits for it gets a result, or what is raised instead; nothing, where he has gone away."""
    if future.done():
        return
    if isinstance(outcome, BaseException):
        future.set_exception(outcome)
    else:
        future.set_result(outcome)
