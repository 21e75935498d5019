"""A decode replica has its prompts computed by the prefill replica that our router chooses, and goes on with them.

    front end ─▶ decode replica ── the prompt alone ─▶ prefill replica, which the router chooses: its address is known
                 its engine ◀─ blocks of each chunk, while the next is computed ─┘

Knows requests and where a chosen replica gives blocks; how blocks travel, `execution.kv_exchange` knows. Whatever fails
here costs computing: the decode replica's engine computes the prompt. Lives in one event loop.
"""

from __future__ import annotations

import asyncio
import itertools
import uuid

from msgspec import structs

from inflight.core.types.events import Event, FinishedEvent
from inflight.core.types.kv_transfer import KVTransfer, PeerAddress
from inflight.core.types.request import Request
from inflight.engine.event_stream import set_outcome
from inflight.engine.remote.messages import Refused
from inflight.frontend.prefill_engines import is_handed_over, prompt_alone
from inflight.ray.replica_links import Links
from inflight.ray.routing_board import RoutingBoard
from inflight.routing.routed_request import RoutedRequest

CHOICE_SECONDS = 0.5  # for which Ray's choice of a prefill replica is waited for: it takes some milliseconds


class Prefilling:
    def __init__(self, links: Links, board: RoutingBoard, block_size: int):
        """block_size: of the engines: less than a block is not handed over."""
        self._links, self._board, self._block_size = links, board, block_size
        self._ids = (f"{uuid.uuid4().hex} {number}" for number in itertools.count())
        self._asked: dict[str, _Asked] = {}  # by the request that is decoded here

    async def taken_over(self, request: Request, age: float) -> Request:
        """As the engine here is to have it. age: seconds since it arrived."""
        if not is_handed_over(request, self._block_size) or not self._board.has_replicas:
            return request
        asked = _Asked(self._board, next(self._ids))
        prompt = structs.replace(prompt_alone(request, asked.export_id), arrival=-age)
        self._asked[request.request_id] = asked
        self._links.ask(prompt, RoutedRequest.of(prompt), asked)
        place = await asked.place(CHOICE_SECONDS)
        if place is None:
            self.left(request.request_id)
            return request
        return structs.replace(request, kv_transfer=KVTransfer(take=place))

    def left(self, request_id: str) -> None:
        """It ends before its prompt was computed, perhaps."""
        asked = self._asked.pop(request_id, None)
        if asked is not None and not asked.is_over:
            asked.end()
            self._links.leave(asked.export_id)

    def begun(self, request_id: str) -> None:
        """The engine here has its prompt, by whatever way."""
        self.left(request_id)


class _Asked:
    """A prompt on its way to a prefill replica. A `Told` of its link."""

    def __init__(self, board: RoutingBoard, export_id: str):
        self.export_id, self.is_over = export_id, False
        self._board = board
        self._loop = asyncio.get_running_loop()
        self._place: asyncio.Future[PeerAddress | None] = self._loop.create_future()

    async def place(self, seconds: float) -> PeerAddress | None:
        """Where its blocks will be; None: nowhere."""
        timer = self._loop.call_later(seconds, set_outcome, self._place, None)
        try:
            return await self._place
        finally:
            timer.cancel()

    def end(self) -> None:
        self.is_over = True
        self._board.ended(self.export_id)
        set_outcome(self._place, None)

    def chosen(self, replica: str) -> None:
        address = self._board.peer_of(replica)
        set_outcome(self._place, None if address is None else PeerAddress(*address, self.export_id))

    def accepted(self) -> None:
        """Its blocks are pulled when they are there."""

    def refused(self, refusal: Refused) -> None:
        self.end()  # and the replica tells whoever waits for its blocks

    def happened(self, events: list[Event]) -> None:
        if isinstance(events[-1], FinishedEvent):
            self.end()

    def lost(self, why: str) -> None:
        self.end()  # and the pull fails with it
