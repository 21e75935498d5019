"""Have a decode replica's prompts computed by prefill replicas (disaggregated prefill).

    front end ─▶ decode replica ── the prompt alone ─▶ prefill replica, chosen by the router; its address is known
                 its engine ◀─ blocks of each chunk, while the next is computed ─┘

`execution.kv.transfer` transfers the blocks. If anything fails here, the decode replica computes the prompt itself.
There a prompt waits until the decode replica has room for its blocks and requests them (`WantedPrompts`): blocks that
were computed earlier would only occupy the cache, and might be evicted by the next prompt's. All methods run in one
event loop, but the callback of `PeerExports`.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import threading
import uuid
from collections import OrderedDict
from collections.abc import Callable
from typing import Protocol

from msgspec import structs

from inflight.core.types.events import Event, FinishedEvent
from inflight.core.types.kv_transfer import KVTransfer, PeerAddress
from inflight.core.types.request import Request
from inflight.engine.event_stream import set_outcome
from inflight.engine.remote.messages import Refused
from inflight.frontend.prefill_engines import is_transferable, prompt_alone
from inflight.ray.replica_links import Links
from inflight.ray.routing_board import RoutingBoard
from inflight.routing.routed_request import RoutedRequest

_MAX_EARLY = 4096  # exports remembered that were requested before their prompts arrived
CHOICE_SECONDS = 0.5  # limit of waiting for Ray's choice of a prefill replica, which takes some milliseconds


class Prefilling:
    """The prompts of one decode replica that prefill replicas compute."""

    def __init__(self, links: Links, board: RoutingBoard, block_size: int):
        """block_size: tokens in a KV block; shorter prompts are computed by the decode replica."""
        self._links, self._board, self._block_size = links, board, block_size
        self._ids = (f"{uuid.uuid4().hex} {number}" for number in itertools.count())
        self._prefills: dict[str, _RemotePrefill] = {}  # by the id of the request that is decoded here

    async def start(self, request: Request, age: float) -> Request:
        """Send the prompt to a prefill replica; return the request to add to the engine here, with the KV transfer.

        The request is returned unchanged if no prefill replica computes its prompt.

        Args:
            request: To be decoded here.
            age: Seconds since its arrival.
        """
        if not is_transferable(request, self._block_size) or not self._board.has_replicas:
            return request
        prefill = _RemotePrefill(self._board, next(self._ids))
        prompt = structs.replace(prompt_alone(request, prefill.export_id), arrival=-age)
        self._prefills[request.request_id] = prefill
        self._links.open(prompt, RoutedRequest.of(prompt), prefill)
        address = await prefill.address(CHOICE_SECONDS)
        if address is None:
            self.end(request.request_id)
            return request
        return structs.replace(request, kv_transfer=KVTransfer(take=address))

    def end(self, request_id: str) -> None:
        """Stop following a prompt: the engine here has its blocks, or the request was refused or aborted."""
        prefill = self._prefills.pop(request_id, None)
        if prefill is not None and not prefill.is_over:
            prefill.end()
            self._links.leave(prefill.export_id)


class _RemotePrefill:
    """A prompt that a prefill replica computes; the `RequestListener` of its link."""

    def __init__(self, board: RoutingBoard, export_id: str):
        self.export_id, self.is_over = export_id, False
        self._board = board
        self._loop = asyncio.get_running_loop()
        self._address: asyncio.Future[PeerAddress | None] = self._loop.create_future()

    async def address(self, seconds: float) -> PeerAddress | None:
        """Wait for the peer that will export the blocks; None: no replica was chosen within `seconds`, or it failed."""
        timer = self._loop.call_later(seconds, set_outcome, self._address, None)
        try:
            return await self._address
        finally:
            timer.cancel()

    def end(self) -> None:
        self.is_over = True
        self._board.ended(self.export_id)
        set_outcome(self._address, None)

    def chosen(self, replica: str) -> None:
        address = self._board.peer_of(replica)
        set_outcome(self._address, None if address is None else PeerAddress(*address, self.export_id))

    def accepted(self) -> None:
        """Ignore the acceptance: the engine here pulls the blocks as they are computed."""

    def refused(self, refusal: Refused) -> None:
        self.end()  # the replica withdraws the export, which ends the pull

    def happened(self, events: list[Event]) -> None:
        if isinstance(events[-1], FinishedEvent):
            self.end()

    def lost(self, why: str) -> None:
        self.end()  # the pull fails, too


class PeerExports(Protocol):
    """The part of KV transfer that is needed here."""

    def when_wanted(self, callback: Callable[[str], None], /) -> None:
        """Call back, in any thread, with the id of each export that a peer requests before it has begun."""


class WantedPrompts:
    """The exports that decode replicas have requested, and the prompts that wait for a request."""

    def __init__(self, exports: PeerExports):
        """Register the callback, before any peer can send requests."""
        self._lock = threading.Lock()  # guards the two below
        self._early: OrderedDict[str, None] = OrderedDict()
        self._waiting: dict[str, asyncio.Future[bool]] = {}
        exports.when_wanted(self._requested)

    async def wait(self, export_id: str, seconds: float) -> bool:
        """Wait until a peer requests the export; return False after `seconds` without a request, or if abandoned."""
        loop = asyncio.get_running_loop()
        wanted: asyncio.Future[bool] = loop.create_future()
        with self._lock:
            if self._early.pop(export_id, self) is None:
                return True
            self._waiting[export_id] = wanted
        timer = loop.call_later(seconds, set_outcome, wanted, False)
        try:
            await wanted
        finally:
            timer.cancel()
            with self._lock:
                del self._waiting[export_id]
        return wanted.result()

    def abandon(self, export_id: str) -> None:
        """End the wait for an export whose request was aborted. Call it in the event loop."""
        if (wanted := self._waiting.get(export_id)) is not None:
            set_outcome(wanted, False)

    def _requested(self, export_id: str) -> None:
        with self._lock:
            wanted = self._waiting.get(export_id)
            if wanted is None:
                self._early[export_id] = None
                while len(self._early) > _MAX_EARLY:
                    self._early.popitem(last=False)
                return
        with contextlib.suppress(RuntimeError):  # the event loop is closed
            wanted.get_loop().call_soon_threadsafe(set_outcome, wanted, True)
