"""Simulated block transfers that take time beside the steps: rates, channels, host copies and a shared folder."""

from __future__ import annotations

import math
from collections import OrderedDict, deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from inflight.core.types.kv_blocks import KVMatch, SharedRoot, block_hash, root_hash
from inflight.core.types.plan import HOST, BatchPlan, EarlySend, Transfer, Transferred
from inflight.core.types.request import Request
from inflight.engine.clock import VirtualClock


class SimulatedTier(Protocol):
    @property
    def next_end(self) -> float:
        """When the next one ends, as far as is known now; infinite where none is known to."""

    @property
    def out(self) -> bool:
        """Whether any has not been told to have ended."""

    def serves(self, tier: str) -> bool: ...

    def begin(self, transfer: Transfer, now: float) -> None: ...

    def ended(self, now: float) -> list[Transferred]:
        """Those that have ended by then; each is told once."""


class EarlySender(Protocol):
    def begin_early(self, early: EarlySend, begin: float, seconds: float) -> None:
        """A step that takes so long from then on computes these blocks."""


class TimedTransfers:
    def __init__(self, places: Sequence[SimulatedTier], clock: VirtualClock, peers: EarlySender | None = None):
        """peers: of the places the one to which blocks may travel while they are computed."""
        self._places, self._clock, self._peers = places, clock, peers
        self._computed = 0.0  # end of the last step whose result was asked for
        self._device_free = 0.0  # end of the last step that was begun

    @property
    def next_end(self) -> float:
        return min(one.next_end for one in self._places)

    @property
    def out(self) -> bool:
        return any(one.out for one in self._places)

    def begin(self, plan: BatchPlan, seconds: float) -> None:
        """With a step that takes so long; what no place serves is part of the step."""
        now = self._clock.now()
        for transfer in plan.transfers:
            for place in self._places:
                if place.serves(transfer.tier):
                    place.begin(transfer, now)
        start = max(now, self._device_free)
        self._device_free = start + seconds
        if self._peers is not None:
            for early in plan.early_sends:
                self._peers.begin_early(early, start, seconds)

    def computes(self, seconds: float) -> None:
        """The next step takes so long."""
        self._computed = self._clock.now() + seconds

    def ended(self) -> tuple[Transferred, ...]:
        now = max(self._clock.now(), self._computed)
        return tuple(one for place in self._places for one in place.ended(now))


@dataclass(frozen=True, slots=True)
class TransferRate:
    """Seconds of a transfer: setup_s, and block_s for each block."""

    block_s: float
    setup_s: float = 0.0

    def seconds(self, blocks: int) -> float:
        return self.setup_s + blocks * self.block_s


class Channel:
    """One transfer after the other."""

    def __init__(self, rate: TransferRate):
        self._rate = rate
        self._free = 0.0
        self._out: deque[tuple[float, Transfer]] = deque()

    @property
    def next_end(self) -> float:
        return self._out[0][0] if self._out else math.inf

    def begin(self, transfer: Transfer, now: float) -> None:
        self._free = max(now, self._free) + self._rate.seconds(len(transfer.blocks))
        self._out.append((self._free, transfer))

    def ended(self, now: float) -> list[tuple[float, Transfer]]:
        """With their times."""
        found = []
        while self._out and self._out[0][0] <= now:
            found.append(self._out.popleft())
        return found


class HostCopies:
    """Copies to the host's memory and back that go on beside the steps, as on GPUs; both ways at once."""

    def __init__(self, rate: TransferRate):
        self._ways = Channel(rate), Channel(rate)  # there, back

    @property
    def next_end(self) -> float:
        return min(way.next_end for way in self._ways)

    @property
    def out(self) -> bool:
        return not math.isinf(self.next_end)

    def serves(self, tier: str) -> bool:
        return tier == HOST

    def begin(self, transfer: Transfer, now: float) -> None:
        self._ways[transfer.kind == "load"].begin(transfer, now)

    def ended(self, now: float) -> list[Transferred]:
        return [Transferred(one.transfer_id) for way in self._ways for _, one in way.ended(now)]


TIER = "folder"
LOOK_SECONDS = 20.0  # until others' blocks are seen
_IDENTITY = b"simulated"


@dataclass(frozen=True, slots=True)
class Folder:
    """blocks: that it may hold. reads, writes: of its disk."""

    blocks: int
    reads: TransferRate
    writes: TransferRate


@dataclass(frozen=True, slots=True)
class _Kept:
    writer: int
    since: float


class FolderContents:
    """What is there, for all replicas."""

    def __init__(self, most_blocks: int):
        self._most = most_blocks
        self._kept: OrderedDict[int, _Kept] = OrderedDict()  # by name, used longest ago first

    def has(self, name: int, reader: int, now: float) -> bool:
        kept = self._kept.get(name)
        return kept is not None and (kept.writer == reader or now >= kept.since + LOOK_SECONDS)

    def used(self, names: Sequence[int]) -> None:
        for name in names:
            self._kept.move_to_end(name)

    def keep(self, names: Sequence[int], writer: int, now: float) -> None:
        for name in names:
            if name not in self._kept:
                self._kept[name] = _Kept(writer, now)
        while len(self._kept) > self._most:
            self._kept.popitem(last=False)


class SimulatedFolder:
    """As one replica has it."""

    tier = TIER

    def __init__(self, about: Folder, contents: FolderContents, replica: int, block_size: int, clock: VirtualClock):
        self._contents, self._replica, self._size, self._clock = contents, replica, block_size, clock
        self._reader, self._writer = Channel(about.reads), Channel(about.writes)
        self._writing: set[int] = set()  # names
        self._failed: list[Transferred] = []

    # -- a source and a sink ------------------------------------------------------------------------------------
    def match(self, request: Request, root: SharedRoot, token_ids: Sequence[int], held: int) -> KVMatch | None:
        name, found, now = root_hash(root, _IDENTITY), [], self._clock.now()
        for start in range(0, len(token_ids) - self._size + 1, self._size):
            name = block_hash(name, token_ids[start : start + self._size])
            if start >= held * self._size:
                if not self._contents.has(int.from_bytes(name), self._replica, now):
                    break
                found.append(int.from_bytes(name))
        return KVMatch("load", TIER, tuple(found)) if found else None

    def name(self, before: bytes | SharedRoot, token_ids: Sequence[int]) -> bytes | None:
        return block_hash(root_hash(before, _IDENTITY) if isinstance(before, SharedRoot) else before, token_ids)

    def wants(self, name: bytes) -> bool:
        number = int.from_bytes(name)
        return number not in self._writing and not self._contents.has(number, self._replica, self._clock.now())

    # -- a place ------------------------------------------------------------------------------------------------
    @property
    def next_end(self) -> float:
        return self._clock.now() if self._failed else min(self._reader.next_end, self._writer.next_end)

    @property
    def out(self) -> bool:
        return self.next_end < float("inf")

    def serves(self, tier: str) -> bool:
        return tier == TIER

    def begin(self, transfer: Transfer, now: float) -> None:
        names = transfer.remote_blocks
        if transfer.kind == "store":
            self._writing.update(names)
            self._writer.begin(transfer, now)
        elif all(self._contents.has(name, self._replica, now) for name in names):
            self._contents.used(names)
            self._reader.begin(transfer, now)
        else:
            self._failed.append(Transferred(transfer.transfer_id, "A block has given way to others meanwhile."))

    def ended(self, now: float) -> list[Transferred]:
        ended, self._failed = self._failed, []
        for time, transfer in self._writer.ended(now):
            self._writing.difference_update(transfer.remote_blocks)
            self._contents.keep(transfer.remote_blocks, self._replica, time)
            ended.append(Transferred(transfer.transfer_id))
        return [*ended, *(Transferred(one.transfer_id) for _, one in self._reader.ended(now))]
