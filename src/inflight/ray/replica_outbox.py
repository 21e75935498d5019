"""Send the events of a replica's requests to front ends: one stream for each link, one item for all new events.

A link that no front end follows for a while, or whose stream breaks, ends with its requests. All methods run in one
event loop.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Iterable

from inflight.core.types.events import Event, FinishedEvent
from inflight.core.types.request import Request, RequestRefused
from inflight.engine.bridge import EventSource
from inflight.engine.event_stream import EngineStopped, event_size, set_outcome
from inflight.engine.remote.messages import Accepted, FromEngine, Happened, Refused, Stopped, encode
from inflight.ray.replica_load import ReplicaLoad

GAP_SECONDS = 0.004  # least time between two items, long against the cost of sending one; slower steps are not delayed
IDLE_SECONDS = 5.0  # for which a stream stays open after its last request; Ray cannot drain the replica meanwhile
BEAT_SECONDS = 2.0  # between two empty items, which show that the replica is alive
UNFOLLOWED_SECONDS = 30.0  # after which a link that no front end follows is closed
MAX_ITEM = 16_000  # tokens and log-probabilities in an item; one event may have more


class Outboxes:
    """The links of all front ends to this replica."""

    def __init__(self, engine: EventSource, load: ReplicaLoad):
        """load: counts the requests and their events."""
        self._engine, self._load = engine, load
        self._boxes: dict[str, _Outbox] = {}

    async def open(self, link: str, requests: tuple[Request, ...]) -> FromEngine:
        """Add requests to the engine; return `Accepted`, `Refused` or `Stopped`."""
        box = self._boxes.get(link)
        if box is None:
            box = self._boxes[link] = _Outbox(self._load)
            self._close_unless_followed(link, box)
        consumer = _Opened(box, requests)
        box.opening += 1
        self._engine.submit(consumer)
        try:
            await consumer.accepted
        except RequestRefused as refusal:
            box.remove(consumer)
            return Refused(0, str(refusal), refusal.retry_after, refusal.field, refusal.code)
        except EngineStopped as fault:
            return Stopped(str(fault))
        except asyncio.CancelledError:
            self._leave(box, consumer)
            raise
        finally:
            box.opening -= 1
        if self._boxes.get(link) is not box:
            self._leave(box, consumer)
            return Stopped("The link was closed before the request was accepted.")
        return Accepted(0)

    async def follow(self, link: str) -> AsyncIterator[bytes]:
        """Yield the items of a link, until no request has been in flight for a while."""
        box = self._boxes.setdefault(link, _Outbox(self._load))
        box.is_followed = True
        try:
            async for item in box.items():
                yield item
        finally:
            if self._boxes.get(link) is box:
                del self._boxes[link]
            self._end(box)

    def leave(self, link: str, request_ids: Iterable[str]) -> None:
        """Abort requests of a link; ids that are not open are ignored."""
        box = self._boxes.get(link)
        if box is None:
            return
        for request_id in request_ids:
            consumer = box.open.get(request_id)
            if consumer is not None:
                self._leave(box, consumer)

    def _close_unless_followed(self, link: str, box: _Outbox) -> None:
        """Close the link after a while if its front end, which may be gone, does not follow it."""

        def look() -> None:
            if not box.is_followed and self._boxes.get(link) is box:
                del self._boxes[link]
                self._end(box)

        asyncio.get_running_loop().call_later(UNFOLLOWED_SECONDS, look)

    def _end(self, box: _Outbox) -> None:
        for consumer in set(box.open.values()):
            self._leave(box, consumer)

    def _leave(self, box: _Outbox, consumer: _Opened) -> None:
        box.remove(consumer)
        self._engine.cancel(consumer)


class _Outbox:
    """The open requests and unsent events of one link."""

    def __init__(self, load: ReplicaLoad):
        self.open: dict[str, _Opened] = {}  # by request id
        self.opening = 0  # calls of `open` in flight
        self.is_followed = False
        self._load = load
        self._events: deque[Event] = deque()
        self._fault: Exception | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._loop = asyncio.get_running_loop()

    def add(self, consumer: _Opened) -> None:
        for one in consumer.requests:
            self.open[one.request_id] = consumer
            self._load.add(one)

    def put(self, events: list[Event]) -> None:
        self._load.observe(events)
        for event in events:
            if isinstance(event, FinishedEvent):
                self.open.pop(event.request_id, None)
        self._events += events
        self._wake()

    def remove(self, consumer: _Opened) -> None:
        """Remove the consumer's requests that have not ended."""
        for one in consumer.unended:
            if self.open.get(one.request_id) is consumer:
                del self.open[one.request_id]
            self._load.remove(one)
        self._wake()

    def fail(self, error: Exception) -> None:
        self._fault = self._fault or error
        self._wake()

    async def items(self) -> AsyncIterator[bytes]:
        sent = self._loop.time() - GAP_SECONDS
        while True:
            if self._events:
                if (early := sent + GAP_SECONDS - self._loop.time()) > 0:
                    await asyncio.sleep(early)
                yield encode(Happened.of(self._item()))
            elif self._fault is not None:
                yield encode(Stopped(str(self._fault)))
                return
            elif not await self._wait(BEAT_SECONDS):
                if not (self.open or self.opening) and self._loop.time() - sent >= IDLE_SECONDS:
                    return
                yield encode(Happened([], [], [], []))
                continue
            sent = self._loop.time()

    def _item(self) -> list[Event]:
        item, size = [self._events.popleft()], 0
        while self._events and size < MAX_ITEM:
            size += event_size(item[-1])
            item.append(self._events.popleft())
        return item

    async def _wait(self, seconds: float) -> bool:
        """Wait for an event or a fault; return False after `seconds` without one."""
        waiter = self._waiter = self._loop.create_future()
        timer = self._loop.call_later(seconds, set_outcome, waiter, None)
        try:
            await waiter
        finally:
            self._waiter = None
            timer.cancel()
        return bool(self._events or self._fault)

    def _wake(self) -> None:
        if self._waiter is not None:
            set_outcome(self._waiter, None)


class _Opened:
    """Requests of one `open`, as a consumer of the engine's bridge."""

    def __init__(self, box: _Outbox, requests: tuple[Request, ...]):
        self.loop, self.requests = asyncio.get_running_loop(), requests
        self.accepted: asyncio.Future[None] = self.loop.create_future()
        self._box = box
        self._ended: set[str] = set()

    @property
    def unended(self) -> list[Request]:
        return [one for one in self.requests if one.request_id not in self._ended]

    def accept(self, refusal: Exception | None) -> None:
        if refusal is None:
            self._box.add(self)
        set_outcome(self.accepted, refusal)

    def put(self, events: list[Event]) -> None:
        self._ended |= {one.request_id for one in events if isinstance(one, FinishedEvent)}
        self._box.put(events)

    def fail(self, error: Exception) -> None:
        self._box.fail(error)
