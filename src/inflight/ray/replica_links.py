"""Links: one stream a replica, in which all that it has to tell this front end comes, one item a step.

    front end                                  replica
    open(request, link)          ──▶  its own call, which Ray routes; the answer says: taken in, or refused
    follow(link)                 ──▶  a stream, begun with the first request that goes there
         events of all its requests   ◀──  what a step brought, for all of them together
    leave(link, requests)        ──▶  nobody reads these any more

A link has an id of its own, so that a replica which is reached anew is told from one that was lost. Its stream ends
when nothing has been under way for a while, so that Ray can drain the replica; whatever else ends it loses all requests
of that link, of which each is told. Knows requests by id and replicas by Ray's names; who sends and what it costs,
`replica_handle` and Ray know. Lives in one event loop, but for `_link_to`, which Ray's thread calls.
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
from inflight.ray.routed_frame import RoutedFrame
from inflight.routing.routed_request import RoutedRequest

OPEN_SECONDS = 90.0  # for which Ray may look for another one in place of a replica that is lost
SILENT_SECONDS = 30.0  # of a replica that Ray does not name any more, after which it is lost
LATE_SECONDS = 1.0  # after which a request that was left while it was on its way has arrived
FOLLOWS = 3  # of a link whose stream ends although something is under way

log = logging.getLogger("inflight.server")


class ReplicaLost(RuntimeError):
    """It answers no more; the sentence says why."""


class Following(Protocol):
    """What a replica tells. One that is lost raises ReplicaLost."""

    def __aiter__(self) -> AsyncIterator[bytes]: ...

    def cancel(self) -> None:
        """Nobody reads it any more."""


class Transport(Protocol):
    """The three calls. A replica that is lost raises ReplicaLost."""

    async def open(self, frame: RoutedFrame) -> bytes: ...

    def follow(self, replica: str, link: str) -> Following: ...

    async def leave(self, replica: str, link: str, request_ids: list[str]) -> None: ...

    def is_there(self, replica: str) -> bool:
        """Whether Ray sends it requests: it does not while one is drained, nor when it is gone."""


class Told(Protocol):
    """Who has asked, and is told what becomes of it, in the event loop."""

    def chosen(self, replica: str) -> None:
        """It is on its way there."""

    def accepted(self) -> None: ...

    def refused(self, refusal: Refused) -> None: ...

    def happened(self, events: list[Event]) -> None: ...

    def lost(self, why: str) -> None:
        """It will hear nothing more."""


class _Asked:
    """A request. link: None until a replica was chosen. is_left: nobody wants to hear of it any more."""

    def __init__(self, request_id: str, told: Told):
        self.request_id, self.told = request_id, told
        self.link: _Link | None = None
        self.opening: asyncio.Task[None] | None = None
        self.is_taken = self.is_left = False

    def taken_in(self) -> None:
        if not self.is_taken:
            self.is_taken = True
            self.told.accepted()


class _Link:
    def __init__(self, replica: str, link_id: str):
        self.replica, self.id = replica, link_id
        self.asked: dict[str, _Asked] = {}
        self.leaving: list[str] = []
        self.heard = 0.0  # when something came last
        self.following: Following | None = None


class Links:
    def __init__(self, transport: Transport):
        """In the running event loop."""
        self._transport, self._loop = transport, asyncio.get_running_loop()
        self._lock = threading.Lock()  # of the next one
        self._ids: dict[str, str] = {}  # replica → its link, as long as that takes requests
        self._links: dict[str, _Link] = {}  # by id
        self._asked: dict[str, _Asked] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def ask(self, request: Request, routed: RoutedRequest, told: Told) -> None:
        """request: its arrival as seconds before now, since clocks of machines differ."""
        asked = self._asked[request.request_id] = _Asked(request.request_id, told)
        frame = RoutedFrame(encode(Open(0, (request,))), routed, partial(self._link_to, asked))
        asked.opening = self._start(self._open(asked, frame))

    def leave(self, request_id: str) -> None:
        """Nobody reads it any more."""
        asked = self._asked.pop(request_id, None)
        if asked is None:
            return
        asked.is_left = True
        if asked.link is not None:
            self._leave(asked.link, asked)
        elif asked.opening is not None:
            asked.opening.cancel()  # nobody was chosen yet

    def close(self) -> None:
        """Nothing is told any more."""
        for task in tuple(self._tasks):
            task.cancel()
        for link in self._links.values():
            if link.following is not None:
                link.following.cancel()

    # -- opening ------------------------------------------------------------------------------------------------

    async def _open(self, asked: _Asked, frame: RoutedFrame) -> None:
        try:
            try:
                answer = decode_from_engine(await self._transport.open(frame))
            finally:
                await asyncio.sleep(0)  # who was chosen is told first
            if asked.is_left:
                return
            if isinstance(answer, Accepted):
                if asked.link is None:
                    raise ReplicaLost("it was lost when it had taken the request in")
                return asked.taken_in()
            if isinstance(answer, Refused):
                self._forget(asked)
                return asked.told.refused(answer)
            raise ReplicaLost(getattr(answer, "sentence", "It gave no answer."))
        except (ReplicaLost, MessageError) as fault:
            if not (asked.is_taken or asked.is_left):  # events say that it was taken in
                self._lose(asked, str(fault))
        except Exception as fault:  # a mistake here; nobody may wait for ever
            log.exception("a request could not be sent to a replica")
            self._lose(asked, str(fault))

    def _link_to(self, asked: _Asked, replica: str) -> str:
        """In Ray's thread: the id of the link to whom it goes."""
        with self._lock:
            link_id = self._ids.setdefault(replica, uuid.uuid4().hex)
        with contextlib.suppress(RuntimeError):  # the event loop is closed
            self._loop.call_soon_threadsafe(self._chosen, asked, replica, link_id)
        return link_id

    def _chosen(self, asked: _Asked, replica: str, link_id: str) -> None:
        link = self._links.get(link_id)
        if link is None:
            link = self._links[link_id] = _Link(replica, link_id)
            self._start(self._follow(link))
        if asked.is_left:
            self._loop.call_later(LATE_SECONDS, self._leave, link, asked)
            return
        if asked.link is not None:  # another one would not have it
            asked.link.asked.pop(asked.request_id, None)
        asked.link = link
        link.asked[asked.request_id] = asked
        asked.told.chosen(replica)

    # -- following ----------------------------------------------------------------------------------------------

    async def _follow(self, link: _Link) -> None:
        why = "it ended its stream"
        try:
            for _ in range(FOLLOWS):
                await self._follow_once(link)
                if not link.asked:
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
        for asked in tuple(link.asked.values()):
            if asked.is_taken:
                self._lose(asked, why)
            else:  # Ray may be sending it elsewhere; its own call says what became of it
                del link.asked[asked.request_id]
                asked.link = None
                self._loop.call_later(OPEN_SECONDS, self._give_up, asked, why)

    async def _follow_once(self, link: _Link) -> None:
        """Until nothing is under way there. Raises ReplicaLost, MessageError."""
        link.heard = self._loop.time()
        link.following = following = self._transport.follow(link.replica, link.id)
        watching = self._start(self._watch(link, following))
        try:
            async for frame in following:
                link.heard = self._loop.time()
                message = decode_from_engine(frame)
                if not isinstance(message, Happened):
                    raise ReplicaLost(getattr(message, "sentence", "It said what it is not asked for."))
                self._happened(link, message)
        finally:
            watching.cancel()
            following.cancel()

    async def _watch(self, link: _Link, following: Following) -> None:
        """A machine that is gone says nothing, not even that."""
        while self._loop.time() - link.heard < SILENT_SECONDS or self._transport.is_there(link.replica):
            await asyncio.sleep(SILENT_SECONDS / 10)
        following.cancel()

    def _happened(self, link: _Link, message: Happened) -> None:
        """Raises MessageError."""
        parcels: dict[str, list[Event]] = {}
        for event in message.events():
            parcels.setdefault(event.request_id, []).append(event)
        for request_id, events in parcels.items():
            asked = link.asked.get(request_id)
            if asked is None:  # nobody wants to hear of it
                continue
            asked.taken_in()
            if isinstance(events[-1], FinishedEvent):
                self._forget(asked)
            asked.told.happened(events)

    # -- ends ---------------------------------------------------------------------------------------------------

    def _leave(self, link: _Link, asked: _Asked) -> None:
        """Those that are left at a time go together. Where Ray sends nothing any more, the end of the link says it,
        once nobody else needs that."""
        link.asked.pop(asked.request_id, None)
        if not self._transport.is_there(link.replica):
            if not link.asked and link.following is not None:
                link.following.cancel()
            return
        if not link.leaving:
            self._loop.call_soon(lambda: self._start(self._tell_left(link)))
        link.leaving.append(asked.request_id)

    async def _tell_left(self, link: _Link) -> None:
        left, link.leaving = link.leaving, []
        with contextlib.suppress(ReplicaLost):  # and they with it
            await self._transport.leave(link.replica, link.id, left)

    def _give_up(self, asked: _Asked, why: str) -> None:
        """It was on its way to a replica that was lost, and nothing was heard of it since."""
        if asked.link is None and not asked.is_left:
            if asked.opening is not None:
                asked.opening.cancel()
            self._lose(asked, why)

    def _lose(self, asked: _Asked, why: str) -> None:
        self._forget(asked)
        asked.told.lost(why)

    def _forget(self, asked: _Asked) -> None:
        asked.is_left = True
        if self._asked.get(asked.request_id) is asked:
            del self._asked[asked.request_id]
        if asked.link is not None:
            asked.link.asked.pop(asked.request_id, None)

    def _start(self, work: Coroutine[None, None, None]) -> asyncio.Task[None]:
        # In a context of its own: in that of a request of Ray's, all calls would have this request's id, by which Ray
        # takes one for the other, and would end with it.
        task = self._loop.create_task(work, context=Context())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task
