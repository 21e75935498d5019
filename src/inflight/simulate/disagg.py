"""Disaggregated prefill and decode: requests in two parts, and the KV transfers between simulated engines.

Exports are held by the rules of the real exchange (docs/disaggregation.md): until a peer has pulled them, for
HOLD_SECONDS, and for half of the blocks at most, beyond which the oldest is dropped. A sender's link carries one piece
after the other: blocks of a chunk go as soon as it is computed and a pull waits for them; for a pull that waits already
they go layer by layer meanwhile, and count once the core has sent them.
"""

from __future__ import annotations

import heapq
import math
from collections import OrderedDict, deque
from dataclasses import dataclass, field, replace
from typing import Literal

from msgspec import structs

from inflight.core.types.kv_transfer import KVTransfer, PeerAddress, export_of, is_of_peers, peer_of
from inflight.core.types.plan import Capacity, EarlySend, Transfer, Transferred
from inflight.core.types.request import Request
from inflight.simulate.transfers import SimulatedTier, TransferRate

DecodeAsks = Literal["after", "first"]
FirstToken = Literal["decode", "prefill"]

_PREFILL_ID = "prompt of "
_ADDRESS = ("prefill", 1)  # of peers, which is not used


@dataclass(frozen=True, slots=True)
class DisaggMode:
    """How a request is divided.

    Attributes:
        decode_asks: when the decode engine is asked: after the prompt is computed, as behind a router, or first, so
            that blocks travel while it is computed.
        first_token: the engine whose first token the client gets: the decode engine, as with this engine's servers, or
            the prefill engine, as with DistServe (arXiv 2401.09670) and Splitwise (arXiv 2311.18677).
        max_local_tokens: tokens of a prompt up to which the decode engine computes it itself, beside its decodes; 0:
            it computes none (Dynamo's conditional disaggregation; TaiChi, arXiv 2508.01989).
    """

    decode_asks: DecodeAsks = "after"
    first_token: FirstToken = "decode"
    max_local_tokens: int = 0

    def stays(self, request: Request) -> bool:
        """Return whether the decode engine computes the prompt itself."""
        return len(request.prompt_token_ids) <= self.max_local_tokens

    def ends_with_prompt(self, request: Request) -> bool:
        """Return whether the prefill engine's token is the whole answer."""
        is_one = request.forced_output_tokens == 1 or request.params.max_tokens == 1
        return self.first_token == "prefill" and is_one


AFTER = DisaggMode()


def for_prefill(request: Request) -> Request:
    """Return the request of the prefill engine: the prompt and one token, whose blocks are exported."""
    return structs.replace(
        request,
        request_id=_PREFILL_ID + request.request_id,
        params=replace(request.params, max_tokens=1, min_tokens=0),
        forced_output_tokens=1,
        kv_transfer=KVTransfer(give=request.request_id),
    )


def for_decode(request: Request) -> Request:
    """Return the request of the decode engine: all of it, with the address of its prompt's blocks."""
    return structs.replace(request, kv_transfer=KVTransfer(take=PeerAddress(*_ADDRESS, request.request_id)))


MAX_HELD_SHARE = 0.5  # of a sender's blocks
HOLD_SECONDS = 60.0  # for which an export stays after its last block
TIMEOUT_SECONDS = 30.0  # of a pull
_MAX_ENDED = 4096  # ended exports that are remembered


@dataclass(frozen=True, slots=True)
class Link:
    """A sender's network link.

    Attributes:
        bytes_per_token: of keys and values of a block, all layers of its group.
        gbps: gigabits per second, net.
        setup_s: fixed seconds of every piece.
        layers: that travel one by one while a chunk is computed; 1: its blocks travel when it is.
    """

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
    hashes: tuple[int, ...]
    until: float
    num_scheduled: int = 0  # leading blocks whose arrival is known
    end: float = 0.0


@dataclass(frozen=True, slots=True)
class _Offer:
    """Blocks that a step computes from begin to end."""

    hashes: tuple[int, ...]
    begin: float
    end: float


@dataclass(slots=True)
class _Export:
    side: ExchangeSide
    expires: float = 0.0
    sizes: dict[int, int] = field(default_factory=dict)  # by hash, in blocks; a checkpoint counts as several
    num_states: int = 0  # checkpoints among these
    early: dict[int, float] = field(default_factory=dict)  # blocks that travel already → their arrival
    transfer_ids: list[int] = field(default_factory=list)
    is_whole: bool = False
    pull: _Pull | None = None
    offers: list[_Offer] = field(default_factory=list)  # that no pull waited for


class Exchange:
    """The exports and pulls of all engines."""

    def __init__(self, link: Link):
        self._link = link
        self._exports: OrderedDict[str, _Export] = OrderedDict()  # the oldest first
        self._ended: OrderedDict[str, None] = OrderedDict()
        self._early_pulls: dict[str, _Pull] = {}  # that wait for the beginning of an export
        self._changed: set[ExchangeSide] = set()

    def drain_changed(self) -> set[ExchangeSide]:
        """Return the sides whose next end may have changed since the last call."""
        changed, self._changed = self._changed, set()
        return changed

    # -- exports ------------------------------------------------------------------------------------------------
    def export(self, side: ExchangeSide, transfer: Transfer, export_id: str, now: float) -> None:
        """Hold more blocks of an export; a transfer without blocks says that it is whole."""
        if export_id in self._ended:
            side.set_end(transfer.transfer_id, now)
            return
        export = self._exports.get(export_id)
        if export is None:
            export = self._exports[export_id] = _Export(side, pull=self._early_pulls.pop(export_id, None))
        if transfer.blocks:
            states = transfer.groups.count(side.capacity.state_group)
            export.sizes |= side.sizes_of(transfer)
            export.num_states += states
            export.transfer_ids.append(transfer.transfer_id)
            side.held += len(transfer.blocks) - states
            side.held_states += states
        else:
            export.is_whole = True
            side.set_end(transfer.transfer_id, now)
        export.expires = now + HOLD_SECONDS
        side.expire_at(export.expires, export_id)
        self._drop_oldest(side, export, now)
        self._schedule(export_id, export, now)

    def offer(self, side: ExchangeSide, early: EarlySend, begin: float, seconds: float) -> None:
        """Offer the blocks that a step computes: the link carries the layers that are done, the last one behind it."""
        export_id = export_of(early.tier)
        assert export_id is not None, "core writes these tiers"
        if self._link.layers == 1 or export_id in self._ended:
            return
        export = self._exports.get(export_id)
        if export is None:
            pull = self._early_pulls.pop(export_id, None)
            export = self._exports[export_id] = _Export(side, math.inf, pull=pull)
        export.offers.append(_Offer(early.remote_blocks, begin, begin + seconds))
        if export.pull is not None:
            self._send_offers(export, export.pull, begin)

    def _send_offers(self, export: _Export, pull: _Pull, now: float) -> None:
        """Send what steps are computing to a pull that waits before they end."""
        offers, export.offers = export.offers, []
        for offer in offers:
            begin = max(now, offer.begin)
            if begin < min(offer.end, pull.until):
                end = export.side.send_early(len(offer.hashes), begin, offer.end - begin, self._link)
                export.early.update(dict.fromkeys(offer.hashes, end))

    def _drop_oldest(self, side: ExchangeSide, last: _Export, now: float) -> None:
        """Drop the oldest exports that no pull waits for, but the last one, while a side holds too many blocks."""
        for export_id, export in tuple(self._exports.items()) if side.holds_too_much else ():
            if not side.holds_too_much:
                return
            if export.side is side and export is not last and export.pull is None:
                self._end(export_id, now)

    def expire(self, export_id: str, now: float) -> None:
        """Drop an export that has expired without a pull."""
        export = self._exports.get(export_id)
        if export is not None and export.pull is None and export.expires <= now:
            self._end(export_id, now)

    # -- pulls --------------------------------------------------------------------------------------------------
    def pull(self, side: ExchangeSide, transfer: Transfer, export_id: str, now: float) -> None:
        """Begin a pull of an export's blocks."""
        pull = _Pull(side, transfer.transfer_id, transfer.remote_blocks, now + TIMEOUT_SECONDS)
        if export_id in self._ended:
            side.set_end(transfer.transfer_id, now, f"The blocks of {export_id!r} are held no more.")
            return
        side.set_end(transfer.transfer_id, pull.until, f"The blocks of {export_id!r} did not come in time.")
        export = self._exports.get(export_id)
        if export is None:
            self._early_pulls[export_id] = pull
        else:
            export.pull = pull
            self._send_offers(export, pull, now)
            self._schedule(export_id, export, now)

    def _schedule(self, export_id: str, export: _Export, now: float) -> None:
        """Send the blocks that are exported and pulled, and end the pull where its end is known."""
        pull = export.pull
        if pull is None:
            return
        if now >= pull.until:  # it has failed
            export.pull = None
            self._end(export_id, now)
            return
        ready = 0
        for block_hash in pull.hashes[pull.num_scheduled :]:
            if block_hash not in export.sizes:
                break
            ready += 1
        hashes = pull.hashes[pull.num_scheduled : pull.num_scheduled + ready]
        if fresh := [one for one in hashes if one not in export.early]:
            pull.end = export.side.send(sum(export.sizes[one] for one in fresh), now, self._link)
        pull.end = max([pull.end, now, *(export.early[one] for one in hashes if one in export.early)])
        pull.num_scheduled += ready
        if pull.num_scheduled == len(pull.hashes):
            error = None if pull.end <= pull.until else "The blocks did not come in time."
            end = min(pull.end, pull.until)
            pull.side.set_end(pull.transfer_id, end, error)
            self._end(export_id, end)
            self._changed.add(pull.side)
        elif export.is_whole and not ready:
            pull.side.set_end(pull.transfer_id, now, f"No block of {export_id!r} has the hash that was asked for.")
            self._end(export_id, now)
            self._changed.add(pull.side)

    def _end(self, export_id: str, when: float) -> None:
        export = self._exports.pop(export_id)
        export.side.held -= len(export.sizes) - export.num_states
        export.side.held_states -= export.num_states
        for transfer_id in export.transfer_ids:
            export.side.set_end(transfer_id, when)
        self._ended[export_id] = None
        while len(self._ended) > _MAX_ENDED:
            self._ended.popitem(last=False)
        self._changed.add(export.side)


class ExchangeSide(SimulatedTier):
    """One engine's side of the exchange, a tier of its transfers."""

    def __init__(self, exchange: Exchange, capacity: Capacity):
        self._exchange, self.capacity = exchange, capacity
        self._max_held = int(MAX_HELD_SHARE * capacity.num_blocks)
        self._max_held_states = int(MAX_HELD_SHARE * capacity.state_snapshots)
        self.held = self.held_states = 0  # exported blocks and checkpoints
        self._link_free = 0.0
        self._ends: dict[int, tuple[float, str | None]] = {}  # by transfer_id, as far as known; with errors
        self._heap: list[tuple[float, int]] = []  # of these; an entry that differs from `_ends` is stale
        self._unknown: set[int] = set()  # transfer_ids of exported blocks
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

    @property
    def holds_too_much(self) -> bool:
        """Whether more blocks or checkpoints are exported than may be held for peers."""
        return self.held > self._max_held or self.held_states > self._max_held_states

    def sizes_of(self, transfer: Transfer) -> dict[int, int]:
        """Return the size of each exported block by its hash, in blocks."""
        large, states = max(1, self.capacity.state_blocks), self.capacity.state_group
        sizes = [large if group == states else 1 for group, _ in transfer.units()]
        return dict(zip(transfer.remote_blocks, sizes, strict=True))

    def serves(self, tier: str) -> bool:
        return is_of_peers(tier)

    def begin(self, transfer: Transfer, now: float) -> None:
        if transfer.kind == "send":
            export_id = export_of(transfer.tier)
            assert export_id is not None, "core writes these tiers"
            self._unknown.add(transfer.transfer_id)
            self._exchange.export(self, transfer, export_id, now)
        else:
            self._exchange.pull(self, transfer, peer_of(transfer.tier).export_id, now)

    def begin_early(self, early: EarlySend, begin: float, seconds: float) -> None:
        self._exchange.offer(self, early, begin, seconds)

    def drain_ended(self, now: float) -> list[Transferred]:
        while self._expiring and self._expiring[0][0] <= now:
            self._exchange.expire(self._expiring.popleft()[1], now)
        found = []
        while self.next_end <= now and self._heap:
            _, transfer_id = heapq.heappop(self._heap)
            found.append(Transferred(transfer_id, self._ends.pop(transfer_id)[1]))
        return found

    # -- for the exchange ---------------------------------------------------------------------------------------
    def set_end(self, transfer_id: int, when: float, error: str | None = None) -> None:
        """Set when a transfer ends, instead of any earlier value."""
        self._unknown.discard(transfer_id)
        self._ends[transfer_id] = when, error
        heapq.heappush(self._heap, (when, transfer_id))

    def expire_at(self, when: float, export_id: str) -> None:
        self._expiring.append((when, export_id))

    def send_early(self, blocks: int, begin: float, seconds: float, link: Link) -> float:
        """Send blocks layer by layer while a step computes them; return when the last layer has come."""
        rate = link.rate(self.capacity.block_size)
        first = max(begin + seconds / link.layers, self._link_free) + rate.seconds(blocks)
        self._link_free = max(first, begin + seconds + rate.block_s * blocks / link.layers)
        return self._link_free

    def send(self, blocks: int, now: float, link: Link) -> float:
        """Send blocks behind what is on the link; return when the last one has come."""
        self._link_free = max(now, self._link_free) + link.rate(self.capacity.block_size).seconds(blocks)
        return self._link_free
