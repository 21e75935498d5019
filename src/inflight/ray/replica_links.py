"""Link this front end to replicas: a call for each request, and one stream of events for each replica.

    front end                                  replica
    open(request, link)          ──▶  a call for each request, which Ray routes; the answer: accepted or refused
    follow(link)                 ──▶  a stream, opened with the first request for this replica
         events of all its requests   ◀──  one item a step, for all of them together
    leave(link, requests)        ──▶  abort these requests

A link has an id of its own, so that a replica that comes back is distinguished from the lost one. Its stream ends when
no request has been in flight for a while, so that Ray can drain the replica. Any other end loses all requests of the
link, and each of their listeners is called. All methods run in one event loop, except `_link_to`, which Ray's thread
calls.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import uuid
from collections.abc import AsyncIterator, Coroutine
from contextvars import Context
from functools import partial
from typing import Protocol

from inflight.core.types.events import Event, FinishedEvent
from inflight.core.types.request import Request
from inflight.engine.remote.messages import (
    Accepted,
    Happened,
    MessageError,
    Open,
    Refused,
    decode_from_engine,
    encode,
)
from inflight.ray.routing_board import RoutedFrame
from inflight.routing.routed_request import RoutedRequest

OPEN_SECONDS = 90.0  # for which Ray may look for another replica in place of a lost one
SILENT_SECONDS = 30.0  # without an item from a replica that Ray has dropped, after which it counts as lost
LATE_SECONDS = 1.0  # after which a request that was aborted while it was being sent has arrived
FOLLOWS = 3  # attempts to follow a link whose stream ends while requests are in flight

log = logging.getLogger("inflight.server")


class ReplicaLost(RuntimeError):
    """Raised if a replica does not answer any more; the message says why."""


class Following(Protocol):
    """The stream of a replica's items. Iterating raises ReplicaLost if the replica is lost."""

    def __aiter__(self) -> AsyncIterator[bytes]: ...

    def cancel(self) -> None:
        """Close the stream."""


class Transport(Protocol):
    """The three calls to replicas. Each raises ReplicaLost if the replica is lost."""

    async def open(self, frame: RoutedFrame) -> bytes: ...

    def follow(self, replica: str, link: str) -> Following: ...

    async def leave(self, replica: str, link: str, request_ids: list[str]) -> None: ...

    def is_routed(self, replica: str) -> bool:
        """Return whether Ray sends the replica requests: not while it is drained, nor when it is gone."""


class RequestListener(Protocol):
    """Callbacks for one request, in the event loop."""

    def chosen(self, replica: str) -> None:
        """Handle the choice of a replica, to which the request is now sent."""

    def accepted(self) -> None: ...

    def refused(self, refusal: Refused) -> None: ...

    def happened(self, events: list[Event]) -> None: ...

    def lost(self, why: str) -> None:
        """Handle the loss of the replica; no further callback follows."""


class _SentRequest:
    """A request.

    Attributes:
        link: None until a replica was chosen.
        is_left: Its listener is not called any more.
    """

    def __init__(self, request_id: str, listener: RequestListener):
        self.request_id, self.listener = request_id, listener
        self.link: _Link | None = None
        self.opening: asyncio.Task[None] | None = None
        self.is_accepted = self.is_left = False

    def accept(self) -> None:
        if not self.is_accepted:
            self.is_accepted = True
            self.listener.accepted()


class _Link:
    def __init__(self, replica: str, link_id: str):
        self.replica, self.id = replica, link_id
        self.requests: dict[str, _SentRequest] = {}
        self.leaving: list[str] = []
        self.heard = 0.0  # time of the last item
        self.following: Following | None = None


class Links:
    """The links of one front end to all replicas."""

    def __init__(self, transport: Transport):
        """Make links in the running event loop."""
        self._transport, self._loop = transport, asyncio.get_running_loop()
        self._lock = threading.Lock()  # guards `_ids`
        self._ids: dict[str, str] = {}  # replica → its link, as long as the link takes requests
        self._links: dict[str, _Link] = {}  # by id
        self._requests: dict[str, _SentRequest] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def open(self, request: Request, routed: RoutedRequest, listener: RequestListener) -> None:
        """Send a request to the replica that the router chooses.

        Args:
            request: With its arrival as seconds before now, since clocks of machines differ.
            routed: The request, as the router reads it.
            listener: Called with the outcome and the events.
        """
        sent = self._requests[request.request_id] = _SentRequest(request.request_id, listener)
        frame = RoutedFrame(encode(Open(0, (request,))), routed, partial(self._link_to, sent))
        sent.opening = self._start(self._open(sent, frame))

    def leave(self, request_id: str) -> None:
        """Abort a request; its listener is not called any more."""
        sent = self._requests.pop(request_id, None)
        if sent is None:
            return
        sent.is_left = True
        if sent.link is not None:
            self._leave(sent.link, sent)
        elif sent.opening is not None:
            sent.opening.cancel()  # no replica was chosen yet

    def close(self) -> None:
        """Close all links; no listener is called any more."""
        for task in tuple(self._tasks):
            task.cancel()
        for link in self._links.values():
            if link.following is not None:
                link.following.cancel()

    # -- opening ------------------------------------------------------------------------------------------------

    async def _open(self, sent: _SentRequest, frame: RoutedFrame) -> None:
        try:
            try:
                answer = decode_from_engine(await self._transport.open(frame))
            finally:
                await asyncio.sleep(0)  # `_chosen` runs first
            if sent.is_left:
                return
            if isinstance(answer, Accepted):
                if sent.link is None:
                    raise ReplicaLost("it was lost after it had accepted the request")
                return sent.accept()
            if isinstance(answer, Refused):
                self._forget(sent)
                return sent.listener.refused(answer)
            raise ReplicaLost(getattr(answer, "sentence", "It gave no answer."))
        except (ReplicaLost, MessageError) as fault:
            if not (sent.is_accepted or sent.is_left):  # events may show before the answer that it was accepted
                self._lose(sent, str(fault))
        except Exception as fault:  # an internal error; no client may wait for ever
            log.exception("a request could not be sent to a replica")
            self._lose(sent, str(fault))

    def _link_to(self, sent: _SentRequest, replica: str) -> str:
        """Return the id of the link to the replica. Called in Ray's thread."""
        with self._lock:
            link_id = self._ids.setdefault(replica, uuid.uuid4().hex)
        with contextlib.suppress(RuntimeError):  # the event loop is closed
            self._loop.call_soon_threadsafe(self._chosen, sent, replica, link_id)
        return link_id

    def _chosen(self, sent: _SentRequest, replica: str, link_id: str) -> None:
        link = self._links.get(link_id)
        if link is None:
            link = self._links[link_id] = _Link(replica, link_id)
            self._start(self._follow(link))
        if sent.is_left:
            self._loop.call_later(LATE_SECONDS, self._leave, link, sent)
            return
        if sent.link is not None:  # another replica, which did not accept it
            sent.link.requests.pop(sent.request_id, None)
        sent.link = link
        link.requests[sent.request_id] = sent
        sent.listener.chosen(replica)

    # -- following ----------------------------------------------------------------------------------------------

    async def _follow(self, link: _Link) -> None:
        why = "it ended its stream"
        try:
            for _ in range(FOLLOWS):
                await self._follow_once(link)
                if not link.requests:
                    break
        except (ReplicaLost, MessageError) as fault:
            why = str(fault)
        except Exception as fault:
            log.exception("a replica could not be followed")
            why = str(fault)
        with self._lock:
            if self._ids.get(link.replica) == link.id:
                del self._ids[link.replica]
        del self._links[link.id]
        for sent in tuple(link.requests.values()):
            if sent.is_accepted:
                self._lose(sent, why)
            else:  # Ray may send it to another replica; the answer to its own call decides
                del link.requests[sent.request_id]
                sent.link = None
                self._loop.call_later(OPEN_SECONDS, self._lose_unless_chosen, sent, why)

    async def _follow_once(self, link: _Link) -> None:
        """Read the link's stream to its end. Raises ReplicaLost, MessageError."""
        link.heard = self._loop.time()
        link.following = following = self._transport.follow(link.replica, link.id)
        watching = self._start(self._watch(link, following))
        try:
            async for frame in following:
                link.heard = self._loop.time()
                message = decode_from_engine(frame)
                if not isinstance(message, Happened):
                    raise ReplicaLost(getattr(message, "sentence", "It sent an unexpected message."))
                self._happened(link, message)
        finally:
            watching.cancel()
            following.cancel()

    async def _watch(self, link: _Link, following: Following) -> None:
        """Close the stream of a replica that is silent and dropped by Ray: a dead machine ends no connection."""
        while self._loop.time() - link.heard < SILENT_SECONDS or self._transport.is_routed(link.replica):
            await asyncio.sleep(SILENT_SECONDS / 10)
        following.cancel()

    def _happened(self, link: _Link, message: Happened) -> None:
        """Call the listeners with an item's events. Raises MessageError."""
        by_request: dict[str, list[Event]] = {}
        for event in message.events():
            by_request.setdefault(event.request_id, []).append(event)
        for request_id, events in by_request.items():
            sent = link.requests.get(request_id)
            if sent is None:  # it was aborted
                continue
            sent.accept()
            if isinstance(events[-1], FinishedEvent):
                self._forget(sent)
            sent.listener.happened(events)

    # -- ends ---------------------------------------------------------------------------------------------------

    def _leave(self, link: _Link, sent: _SentRequest) -> None:
        """Abort a request at its replica; aborts of one iteration of the event loop are sent together.

        Ray sends no calls to a replica that it drains: there the abort is sent by closing the stream, after the last
        request of the link.
        """
        link.requests.pop(sent.request_id, None)
        if not self._transport.is_routed(link.replica):
            if not link.requests and link.following is not None:
                link.following.cancel()
            return
        if not link.leaving:
            self._loop.call_soon(lambda: self._start(self._send_leaving(link)))
        link.leaving.append(sent.request_id)

    async def _send_leaving(self, link: _Link) -> None:
        leaving, link.leaving = link.leaving, []
        with contextlib.suppress(ReplicaLost):  # the requests are lost with the replica
            await self._transport.leave(link.replica, link.id, leaving)

    def _lose_unless_chosen(self, sent: _SentRequest, why: str) -> None:
        """Lose a request that was being sent to a lost replica, if Ray has not sent it to another one since."""
        if sent.link is None and not sent.is_left:
            if sent.opening is not None:
                sent.opening.cancel()
            self._lose(sent, why)

    def _lose(self, sent: _SentRequest, why: str) -> None:
        self._forget(sent)
        sent.listener.lost(why)

    def _forget(self, sent: _SentRequest) -> None:
        sent.is_left = True
        if self._requests.get(sent.request_id) is sent:
            del self._requests[sent.request_id]
        if sent.link is not None:
            sent.link.requests.pop(sent.request_id, None)

    def _start(self, work: Coroutine[None, None, None]) -> asyncio.Task[None]:
        # A context of its own: in the context of one of Ray's requests, all calls would have that request's id, which
        # Ray could not distinguish, and would end with it.
        task = self._loop.create_task(work, context=Context())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task
