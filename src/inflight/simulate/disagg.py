"""Disaggregated prefill and decode: requests in two parts, and the KV transfers between simulated engines."""

from __future__ import annotations

import heapq
import math
from collections import OrderedDict, deque
from dataclasses import dataclass, field, replace
from typing import Literal

from inflight.core.types.kv_transfer import KVTransfer, PeerAddress, export_of, is_of_peers, peer_of
from inflight.core.types.plan import EarlySend, Transfer, Transferred
from inflight.core.types.request import Request
from inflight.simulate.transfers import TransferRate

DecodeAsks = Literal["after", "first"]
FirstToken = Literal["decode", "prefill"]

_PROMPT = "prompt of "
_SOMEWHERE = ("prefill", 1)  # an address, which nobody calls


@dataclass(frozen=True, slots=True)
class DisaggMode:
    """asks: when the decode engine is asked: after the prompt is computed, as behind a router, or first, so that blocks
    travel while it is. first_token: whose the client sees: the decode engine's, as with this engine's servers, or that
    of the prefill engine, as DistServe's (arXiv 2401.09670) and Splitwise's (arXiv 2311.18677)."""

    decode_asks: DecodeAsks = "after"
    first_token: FirstToken = "decode"

    def ends_with_prompt(self, request: Request) -> bool:
        """Whether the prefill engine's token is the whole answer."""
        length, most = request.forced_output_tokens, request.params.max_tokens
        return self.first_token == "prefill" and (length == 1 or most == 1)


AFTER = DisaggMode()


def for_prefill(request: Request) -> Request:
    """The prompt and one token, whose blocks are held for whoever asks for them."""
    return replace(
        request,
        request_id=_PROMPT + request.request_id,
        params=replace(request.params, max_tokens=1, min_tokens=0),
        forced_output_tokens=1,
        kv_transfer=KVTransfer(give=request.request_id),
    )


def for_decode(request: Request) -> Request:
    """All of it, with the place where its prompt is."""
    return replace(request, kv_transfer=KVTransfer(take=PeerAddress(*_SOMEWHERE, request.request_id)))


HELD_SHARE = 0.5  # of a sender's blocks
HOLD_SECONDS = 60.0  # for which an export stays after its last block
TIMEOUT_SECONDS = 30.0  # of a pull, from when it is asked for
_OVER = 4096  # exports that are remembered as over


@dataclass(frozen=True, slots=True)
class Link:
    """bytes_per_token: of keys and values, all layers. gbps: gigabits per second that really pass. setup_s: seconds
    that every piece takes anyway. layers: that travel one by one while a chunk is computed; 1: its blocks travel when
    it is."""

    bytes_per_token: float
    gbps: float
    setup_s: float = 0.001
    layers: int = 1

    def rate(self, block_size: int) -> TransferRate:
        return TransferRate(block_size * self.bytes_per_token * 8 / (self.gbps * 1e9), self.setup_s)


@dataclass(slots=True)
class _Pull:
    side: ExchangeSide
    transfer_id: int
    names: tuple[int, ...]
    until: float
    come: int = 0  # of the names, those that have a time to come
    end: float = 0.0


@dataclass(frozen=True, slots=True)
class _Offer:
    """Blocks that a step computes, from when to when."""

    names: tuple[int, ...]
    begin: float
    end: float


@dataclass(slots=True)
class _Export:
    side: ExchangeSide
    expires: float = 0.0
    names: set[int] = field(default_factory=set)
    early: dict[int, float] = field(default_factory=dict)  # names of blocks that travel already → when they have come
    transfer_ids: list[int] = field(default_factory=list)
    is_whole: bool = False
    pull: _Pull | None = None
    offers: list[_Offer] = field(default_factory=list)  # that nobody has taken up


class Exchange:
    def __init__(self, link: Link):
        self._link = link
        self._exports: OrderedDict[str, _Export] = OrderedDict()  # the oldest first
        self._over: OrderedDict[str, None] = OrderedDict()
        self._early: dict[str, _Pull] = {}  # that wait for the beginning of an export
        self._changed: set[ExchangeSide] = set()

    def drain_changed(self) -> set[ExchangeSide]:
        """Sides whose next end may be another since the last call."""
        changed, self._changed = self._changed, set()
        return changed

    # -- what is held -------------------------------------------------------------------------------------------
    def give(self, side: ExchangeSide, transfer: Transfer, export_id: str, now: float) -> None:
        if export_id in self._over:
            side.ends(transfer.transfer_id, now)
            return
        export = self._exports.get(export_id)
        if export is None:
            export = self._exports[export_id] = _Export(side, pull=self._early.pop(export_id, None))
        if transfer.blocks:
            export.names.update(transfer.remote_blocks)
            export.transfer_ids.append(transfer.transfer_id)
            side.held += len(transfer.blocks)
        else:
            export.is_whole = True
            side.ends(transfer.transfer_id, now)
        export.expires = now + HOLD_SECONDS
        side.expires(export.expires, export_id)
        self._displace(side, export, now)
        self._go_on(export_id, export, now)

    def give_early(self, side: ExchangeSide, early: EarlySend, begin: float, seconds: float) -> None:
        """A step that takes so long from then on computes these blocks. The link carries what layers are done, and the
        last one behind the step."""
        export_id = export_of(early.tier)
        assert export_id is not None, "core writes these tiers"
        if self._link.layers == 1 or export_id in self._over:
            return
        export = self._exports.get(export_id)
        if export is None:
            pull = self._early.pop(export_id, None)
            export = self._exports[export_id] = _Export(side, math.inf, pull=pull)
        export.offers.append(_Offer(early.remote_blocks, begin, begin + seconds))
        if export.pull is not None:
            self._take_offers(export, export.pull, begin)

    def _take_offers(self, export: _Export, pull: _Pull, now: float) -> None:
        """What steps compute is on its way to who waits for it, if somebody does before they end."""
        offers, export.offers = export.offers, []
        for offer in offers:
            begin = max(now, offer.begin)
            if begin < min(offer.end, pull.until):
                end = export.side.send_early(len(offer.names), begin, offer.end - begin, self._link)
                export.early.update(dict.fromkeys(offer.names, end))

    def _displace(self, side: ExchangeSide, last: _Export, now: float) -> None:
        """What is held longest gives way to the last, where too much is held."""
        for export_id, export in tuple(self._exports.items()) if side.held > side.most_held else ():
            if side.held <= side.most_held:
                return
            if export.side is side and export is not last and export.pull is None:
                self._end(export_id, now)

    def expire(self, export_id: str, now: float) -> None:
        export = self._exports.get(export_id)
        if export is not None and export.pull is None and export.expires <= now:
            self._end(export_id, now)

    # -- what is taken ------------------------------------------------------------------------------------------
    def take(self, side: ExchangeSide, transfer: Transfer, export_id: str, now: float) -> None:
        pull = _Pull(side, transfer.transfer_id, transfer.remote_blocks, now + TIMEOUT_SECONDS)
        if export_id in self._over:
            side.ends(transfer.transfer_id, now, f"The blocks of {export_id!r} are held no more.")
            return
        side.ends(transfer.transfer_id, pull.until, f"The blocks of {export_id!r} did not come in time.")
        export = self._exports.get(export_id)
        if export is None:
            self._early[export_id] = pull
        else:
            export.pull = pull
            self._take_offers(export, pull, now)
            self._go_on(export_id, export, now)

    def _go_on(self, export_id: str, export: _Export, now: float) -> None:
        """What is there and waited for is on the link."""
        pull = export.pull
        if pull is None:
            return
        if now >= pull.until:  # it has failed: nobody reads any more
            export.pull = None
            self._end(export_id, now)
            return
        ready = 0
        for name in pull.names[pull.come :]:
            if name not in export.names:
                break
            ready += 1
        names = pull.names[pull.come : pull.come + ready]
        if fresh := [name for name in names if name not in export.early]:
            pull.end = export.side.send(len(fresh), now, self._link)
        pull.end = max([pull.end, now, *(export.early[name] for name in names if name in export.early)])
        pull.come += ready
        if pull.come == len(pull.names):
            error = None if pull.end <= pull.until else "The blocks did not come in time."
            end = min(pull.end, pull.until)
            pull.side.ends(pull.transfer_id, end, error)
            self._end(export_id, end)
            self._changed.add(pull.side)
        elif export.is_whole and not ready:
            pull.side.ends(pull.transfer_id, now, f"No block of {export_id!r} has the name that was asked for.")
            self._end(export_id, now)
            self._changed.add(pull.side)

    def _end(self, export_id: str, when: float) -> None:
        export = self._exports.pop(export_id)
        export.side.held -= len(export.names)
        for transfer_id in export.transfer_ids:
            export.side.ends(transfer_id, when)
        self._over[export_id] = None
        while len(self._over) > _OVER:
            self._over.popitem(last=False)
        self._changed.add(export.side)


class ExchangeSide:
    """Of one engine: a place of its transfers."""

    def __init__(self, exchange: Exchange, num_blocks: int, block_size: int):
        self._exchange, self._size = exchange, block_size
        self.most_held = int(HELD_SHARE * num_blocks)
        self.held = 0  # blocks, for others
        self._link_free = 0.0
        self._ends: dict[int, tuple[float, str | None]] = {}  # by transfer_id, as far as it is known; with errors
        self._heap: list[tuple[float, int]] = []  # of these; the one in `_ends` counts
        self._unknown: set[int] = set()  # transfers of blocks that are held
        self._expiring: deque[tuple[float, str]] = deque()

    @property
    def next_end(self) -> float:
        heap = self._heap
        while heap and self._ends.get(heap[0][1], (None,))[0] != heap[0][0]:
            heapq.heappop(heap)
        first = heap[0][0] if heap else math.inf
        return min(first, self._expiring[0][0]) if self._expiring else first

    @property
    def out(self) -> bool:
        return bool(self._ends or self._unknown)

    def serves(self, tier: str) -> bool:
        return is_of_peers(tier)

    def begin(self, transfer: Transfer, now: float) -> None:
        if transfer.kind == "send":
            export_id = export_of(transfer.tier)
            assert export_id is not None, "core writes these tiers"
            self._unknown.add(transfer.transfer_id)
            self._exchange.give(self, transfer, export_id, now)
        else:
            self._exchange.take(self, transfer, peer_of(transfer.tier).export_id, now)

    def ended(self, now: float) -> list[Transferred]:
        while self._expiring and self._expiring[0][0] <= now:
            self._exchange.expire(self._expiring.popleft()[1], now)
        found = []
        while self.next_end <= now and self._heap:
            _, transfer_id = heapq.heappop(self._heap)
            found.append(Transferred(transfer_id, self._ends.pop(transfer_id)[1]))
        return found

    # -- for the exchange ---------------------------------------------------------------------------------------
    def ends(self, transfer_id: int, when: float, error: str | None = None) -> None:
        """It ends then, whatever was said of it before."""
        self._unknown.discard(transfer_id)
        self._ends[transfer_id] = when, error
        heapq.heappush(self._heap, (when, transfer_id))

    def expires(self, when: float, export_id: str) -> None:
        self._expiring.append((when, export_id))

    def send_early(self, blocks: int, begin: float, seconds: float, link: Link) -> float:
        """While a step computes them, layer by layer; when the last layer has come."""
        rate = link.rate(self._size)
        first = max(begin + seconds / link.layers, self._link_free) + rate.seconds(blocks)
        self._link_free = max(first, begin + seconds + rate.block_s * blocks / link.layers)
        return self._link_free

    def begin_early(self, early: EarlySend, begin: float, seconds: float) -> None:
        self._exchange.give_early(self, early, begin, seconds)

    def send(self, blocks: int, now: float, link: Link) -> float:
        """So many go over the link, behind what is on it; when the last has come."""
        self._link_free = max(now, self._link_free) + link.rate(self._size).seconds(blocks)
        return self._link_free
