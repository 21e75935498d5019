"""Simulated block transfers that take time beside the steps: rates, channels, host copies and a shared folder."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections import OrderedDict, deque
from collections.abc import Sequence
from dataclasses import dataclass

from inflight.core.types.kv_blocks import KVChain, SharedRoot, root_hash
from inflight.core.types.plan import HOST, BatchPlan, Capacity, EarlySend, Transfer, Transferred
from inflight.core.types.request import Request
from inflight.engine.clock import VirtualClock


class SimulatedTier(ABC):
    """A tier whose transfers take time."""

    @property
    @abstractmethod
    def next_end(self) -> float:
        """When the next transfer ends, as far as is known now; infinite where no end is known."""

    @property
    def out(self) -> bool:
        return not math.isinf(self.next_end)

    @abstractmethod
    def serves(self, tier: str) -> bool: ...

    @abstractmethod
    def begin(self, transfer: Transfer, now: float) -> None: ...

    @abstractmethod
    def drain_ended(self, now: float) -> list[Transferred]:
        """Return the transfers that have ended by then, each once."""

    def begin_early(self, early: EarlySend, begin: float, seconds: float) -> None:  # noqa: B027  # most tiers wait
        """Send blocks that a step computes, which takes so long from `begin` on, where blocks may travel meanwhile."""


class TimedTransfers:
    """The transfers of one engine over all its tiers. A transfer that ends during a step is drained with it."""

    def __init__(self, tiers: Sequence[SimulatedTier], clock: VirtualClock):
        self._tiers, self._clock = tiers, clock
        self._computed = 0.0  # end of the last step whose result was asked for
        self._device_free = 0.0  # end of the last step that was begun

    @property
    def next_end(self) -> float:
        return min(one.next_end for one in self._tiers)

    @property
    def out(self) -> bool:
        return any(one.out for one in self._tiers)

    def begin(self, plan: BatchPlan, seconds: float) -> None:
        """Begin a plan's transfers beside its step of so many seconds; those of no tier are part of the step."""
        now = self._clock.now()
        start = max(now, self._device_free)
        self._device_free = start + seconds
        for tier in self._tiers:
            for transfer in plan.transfers:
                if tier.serves(transfer.tier):
                    tier.begin(transfer, now)
            for early in plan.early_sends:
                tier.begin_early(early, start, seconds)

    def begin_step(self, seconds: float) -> None:
        """Note that the step whose result is asked for ends in so many seconds."""
        self._computed = self._clock.now() + seconds

    def drain_ended(self) -> tuple[Transferred, ...]:
        now = max(self._clock.now(), self._computed)
        return tuple(one for tier in self._tiers for one in tier.drain_ended(now))


@dataclass(frozen=True, slots=True)
class TransferRate:
    """Seconds of a transfer: setup_s, and block_s for each block."""

    block_s: float
    setup_s: float = 0.0

    def seconds(self, blocks: int) -> float:
        return self.setup_s + blocks * self.block_s


class Channel:
    """Carries one transfer after the other."""

    def __init__(self, rate: TransferRate, capacity: Capacity):
        self._rate, self._capacity = rate, capacity
        self._free = 0.0
        self._out: deque[tuple[float, Transfer]] = deque()

    @property
    def next_end(self) -> float:
        return self._out[0][0] if self._out else math.inf

    def begin(self, transfer: Transfer, now: float) -> None:
        self._free = max(now, self._free) + self._rate.seconds(self._capacity.num_moved(transfer))
        self._out.append((self._free, transfer))

    def drain_ended(self, now: float) -> list[tuple[float, Transfer]]:
        """Return the transfers that have ended by then, with their times."""
        found = []
        while self._out and self._out[0][0] <= now:
            found.append(self._out.popleft())
        return found


class HostCopies(SimulatedTier):
    """Copies to and from the host's memory beside the steps, as on GPUs; both directions at once."""

    def __init__(self, rate: TransferRate, capacity: Capacity):
        self._channels = Channel(rate, capacity), Channel(rate, capacity)  # to the host, and back

    @property
    def next_end(self) -> float:
        return min(one.next_end for one in self._channels)

    def serves(self, tier: str) -> bool:
        return tier == HOST

    def begin(self, transfer: Transfer, now: float) -> None:
        self._channels[transfer.kind == "load"].begin(transfer, now)

    def drain_ended(self, now: float) -> list[Transferred]:
        return [Transferred(one.transfer_id) for channel in self._channels for _, one in channel.drain_ended(now)]


TIER = "folder"
LOOK_SECONDS = 20.0  # until blocks of other replicas are seen
FINGERPRINT = b"simulated"  # of the KV cache, which is the same on all engines


@dataclass(frozen=True, slots=True)
class Folder:
    """A folder of blocks that replicas share, each with its disk's whole rate. blocks: capacity. Memory bandwidth that
    writing takes from the steps is left out."""

    blocks: int
    reads: TransferRate
    writes: TransferRate


class FolderContents:
    """The blocks of a folder, for all replicas."""

    def __init__(self, max_blocks: int):
        self._max = max_blocks
        self._size = 0  # blocks, by their bytes
        # hash → writer, time, size in blocks; least recent first
        self._blocks: OrderedDict[int, tuple[int, float, int]] = OrderedDict()

    def has(self, block_hash: int, reader: int, now: float) -> bool:
        """Return whether a replica sees a block; those of others only after LOOK_SECONDS."""
        writer, since, _ = self._blocks.get(block_hash, (-1, math.inf, 0))
        return writer == reader or now >= since + LOOK_SECONDS

    def touch(self, hashes: Sequence[int]) -> None:
        for one in hashes:
            self._blocks.move_to_end(one)

    def store(self, sizes: dict[int, int], writer: int, now: float) -> None:
        """Add blocks. sizes: by hash, in blocks; a checkpoint of recurrent state counts as several."""
        for one, size in sizes.items():
            if one not in self._blocks:
                self._blocks[one] = writer, now, size
                self._size += size
        while self._size > self._max:
            self._size -= self._blocks.popitem(last=False)[1][2]


class SimulatedFolder(SimulatedTier):
    """A replica's view of a folder: source and store for core, as `execution.kv.offload`, and a tier of transfers."""

    tier = TIER

    def __init__(self, folder: Folder, contents: FolderContents, replica: int, capacity: Capacity, clock: VirtualClock):
        self._contents, self._replica, self._capacity, self._clock = contents, replica, capacity, clock
        self._reader, self._writer = Channel(folder.reads, capacity), Channel(folder.writes, capacity)
        self._writing: set[int] = set()  # hashes
        self._failed: list[Transferred] = []

    # -- source and store ---------------------------------------------------------------------------------------
    def chain(self, request: Request, root: SharedRoot) -> KVChain | None:
        return KVChain("load", TIER, self.root(root), self._has)

    def root(self, root: SharedRoot) -> bytes:
        return root_hash(root, FINGERPRINT)

    def wants(self, number: int) -> bool:
        return number not in self._writing and not self._contents.has(number, self._replica, self._clock.now())

    # -- tier ---------------------------------------------------------------------------------------------------
    @property
    def next_end(self) -> float:
        return self._clock.now() if self._failed else min(self._reader.next_end, self._writer.next_end)

    def serves(self, tier: str) -> bool:
        return tier == TIER

    def begin(self, transfer: Transfer, now: float) -> None:
        hashes = transfer.remote_blocks
        if transfer.kind == "store":
            self._writing.update(hashes)
            self._writer.begin(transfer, now)
        elif all(self._contents.has(one, self._replica, now) for one in hashes):
            self._contents.touch(hashes)
            self._reader.begin(transfer, now)
        else:
            self._failed.append(Transferred(transfer.transfer_id, "A block was evicted meanwhile."))

    def drain_ended(self, now: float) -> list[Transferred]:
        ended, self._failed = self._failed, []
        for time, transfer in self._writer.drain_ended(now):
            self._writing.difference_update(transfer.remote_blocks)
            large, states = max(1, self._capacity.state_blocks), self._capacity.state_group
            sizes = [large if group == states else 1 for group, _ in transfer.units()]
            self._contents.store(dict(zip(transfer.remote_blocks, sizes, strict=True)), self._replica, time)
            ended.append(Transferred(transfer.transfer_id))
        return [*ended, *(Transferred(one.transfer_id) for _, one in self._reader.drain_ended(now))]

    def _has(self, index: int, group: int, number: int) -> bool:
        return self._contents.has(number, self._replica, self._clock.now())
