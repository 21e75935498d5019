"""Implement EngineClient over replicas: send each request to the replica that the router chooses.

If a replica is lost, the requests it had begun to answer end with an error message. Requests without a token are sent
to another replica, which computes the same tokens. All methods run in one event loop.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from msgspec import structs

from inflight.core.types.events import Event, FinishedEvent, TokensEvent
from inflight.core.types.request import Request, RequestRefused
from inflight.engine.bridge import Consumer
from inflight.engine.event_stream import EngineStopped, EventStream, RequestsLost
from inflight.engine.remote.messages import Refused
from inflight.ray.replica_links import Links
from inflight.ray.routing_board import RoutingBoard
from inflight.routing.routed_request import RoutedRequest

TRIES = 5  # attempts for a request that no replica has begun to answer
PAUSE_SECONDS = 0.2  # between two attempts, in which Ray may notice which replica is lost
FULL_SECONDS = 60.0  # for which a request of a lost replica waits for room at the others
FULL_PAUSE_SECONDS = 1.0  # longest pause between two attempts at full replicas


class ReplicatedEngine:
    """An `EngineClient`, and an `EventSource`, over many replicas."""

    def __init__(self, links: Links, board: RoutingBoard, clock_zero: float, closed: Callable[[], None]):
        """Make a client in the running event loop.

        Args:
            links: Send requests to replicas.
            board: Counts the requests of each replica.
            clock_zero: Time 0 of requests' arrivals, on this machine's monotonic clock.
            closed: Called by `close`.
        """
        self.links, self.board, self._zero, self._closed = links, board, clock_zero, closed
        self._submissions: dict[Consumer, _Submission] = {}
        self._stopped: str | None = None
        self.loop = asyncio.get_running_loop()

    async def open(self, *requests: Request) -> EventStream:
        stream = EventStream(requests, self.cancel)
        self.submit(stream)
        return await stream.opened()

    def submit(self, consumer: Consumer) -> None:
        """Send a consumer's requests to replicas; the outcome goes to its `accept`."""
        if self._stopped is not None:
            return consumer.accept(EngineStopped(self._stopped))
        submission = self._submissions[consumer] = _Submission(self, consumer)
        for one in submission.requests:
            one.send()

    def cancel(self, consumer: Consumer) -> None:
        """Abort a consumer's requests that have not ended."""
        submission = self._submissions.pop(consumer, None)
        for one in () if submission is None else submission.requests:
            one.leave()

    @property
    def stopped(self) -> str | None:
        """Return the reason why no replica can be reached any more, or None. A single lost replica is replaced."""
        return self._stopped

    def close(self) -> None:
        if not self.loop.is_closed():
            self.loop.call_soon_threadsafe(self._close)
        self._stopped = self._stopped or "The server was closed."
        self._closed()

    def stop(self, why: str) -> None:
        """Fail all requests: no replica can be reached any more. Call it in the event loop. why: an error message."""
        self._stopped = self._stopped or why
        for submission in tuple(self._submissions.values()):
            submission.fail(EngineStopped(self._stopped))

    def age(self, request: Request) -> float:
        """Return the seconds since the request's arrival."""
        return time.monotonic() - self._zero - request.arrival

    def _close(self) -> None:
        self.stop("The server was closed.")
        self.links.close()


class _Submission:
    """Requests that a consumer submitted together: accepted once each is, and failed with the first that fails."""

    def __init__(self, engine: ReplicatedEngine, consumer: Consumer):
        self.requests = [_ReplicatedRequest(engine, self, one) for one in consumer.requests]
        self.put = consumer.put
        self._engine, self._consumer = engine, consumer
        self._unaccepted = self._alive = len(self.requests)

    def accept_one(self) -> None:
        self._unaccepted -= 1
        if not self._unaccepted:
            self._consumer.accept(None)

    def end_one(self) -> None:
        self._alive -= 1
        if not self._alive:
            self._engine.cancel(self._consumer)

    def fail(self, fault: Exception) -> None:
        if self._unaccepted:
            self._consumer.accept(fault)
        else:
            self._consumer.fail(fault)
        self._engine.cancel(self._consumer)


class _ReplicatedRequest:
    """One request, sent from replica to replica until it ends; the `RequestListener` of its link."""

    def __init__(self, engine: ReplicatedEngine, submission: _Submission, request: Request):
        self._engine, self._submission, self._request = engine, submission, request
        self._routed = RoutedRequest.of(request)
        self._tokens = 0  # received
        self._begun = False  # whether the client received events, which must not be repeated
        self._tries, self._is_over, self._is_accepted = TRIES, False, False
        self._lost_at: float | None = None

    def send(self) -> None:
        """Send the request to a replica; again after a loss."""
        if not self._is_over:
            self._tries -= 1
            request = structs.replace(self._request, arrival=-self._engine.age(self._request))
            self._engine.links.open(request, self._routed, self)

    def leave(self) -> None:
        if not self._is_over:
            self._engine.links.leave(self._request.request_id)
            self._end()

    def chosen(self, replica: str) -> None:
        """Ignore the choice: the router has counted the request."""

    def accepted(self) -> None:
        """Count the first acceptance; a second one follows a loss."""
        if not self._is_accepted:
            self._is_accepted = True
            self._submission.accept_one()

    def happened(self, events: list[Event]) -> None:
        if not self._begun:
            self._begun = True
            self._engine.board.first_token(self._request.request_id)
        self._tokens += sum(len(one.token_ids) for one in events if isinstance(one, TokensEvent))
        self._submission.put(events)
        if isinstance(events[-1], FinishedEvent):
            self._end()

    def refused(self, refusal: Refused) -> None:
        if self._lost_at is None:
            fault = RequestRefused(refusal.sentence, refusal.retry_after, field=refusal.field, code=refusal.code)
            return self._fail(fault)
        # A replica that was lost had accepted it already.
        if refusal.retry_after is None or self._engine.loop.time() - self._lost_at > FULL_SECONDS:
            why = f"A replica was lost before it answered, and no other accepts the request: {refusal.sentence}"
            return self._fail(RequestsLost(why))
        self._tries += 1
        self._engine.loop.call_later(min(refusal.retry_after, FULL_PAUSE_SECONDS), self.send)

    def lost(self, why: str) -> None:
        self._lost_at = self._lost_at or self._engine.loop.time()
        if not (self._begun or not self._tries):
            self._engine.loop.call_later(PAUSE_SECONDS, self.send)
            return
        when = "while it answered" if self._begun else f"{TRIES} times before the first token"
        self._fail(RequestsLost(f"A replica was lost {when} ({why}); send the request again."))

    def _fail(self, fault: Exception) -> None:
        self._end()
        self._submission.fail(fault)

    def _end(self) -> None:
        self._is_over = True
        self._engine.board.ended(self._request.request_id, self._tokens or None)
        self._submission.end_one()
