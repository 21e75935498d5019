"""A folder of blocks that is not there: which blocks would be in it, and how long its disk would take.

For core a source and a sink, as the real one (`execution.tiers`), and for the executor a place. Blocks are written one
request after the other and read so, too; what was used longest ago gives way. Replicas share a folder, each with the
disk's whole rate, and see what others have written when they look the next time. Knows names and times; nothing is in a
block. That writing takes memory's bandwidth from the steps is left out.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

from inflight.core.types.block_names import next_name, root_name
from inflight.core.types.block_source import Continuation
from inflight.core.types.cache_changes import SharedRoot
from inflight.core.types.plan import Transfer, Transferred
from inflight.core.types.request import Request
from inflight.engine.clock import VirtualClock
from inflight.simulate.timed_transfers import Channel, TransferRate

PLACE = "folder"
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

    place = PLACE

    def __init__(self, about: Folder, contents: FolderContents, replica: int, block_size: int, clock: VirtualClock):
        self._contents, self._replica, self._size, self._clock = contents, replica, block_size, clock
        self._reader, self._writer = Channel(about.reads), Channel(about.writes)
        self._writing: set[int] = set()  # names
        self._failed: list[Transferred] = []

    # -- a source and a sink ------------------------------------------------------------------------------------
    def continuation(
        self, request: Request, root: SharedRoot, token_ids: Sequence[int], held: int
    ) -> Continuation | None:
        name, found, now = root_name(root, _IDENTITY), [], self._clock.now()
        for start in range(0, len(token_ids) - self._size + 1, self._size):
            name = next_name(name, token_ids[start : start + self._size])
            if start >= held * self._size:
                if not self._contents.has(int.from_bytes(name), self._replica, now):
                    break
                found.append(int.from_bytes(name))
        return Continuation("load", PLACE, tuple(found)) if found else None

    def name(self, before: bytes | SharedRoot, token_ids: Sequence[int]) -> bytes | None:
        return next_name(root_name(before, _IDENTITY) if isinstance(before, SharedRoot) else before, token_ids)

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

    def serves(self, place: str) -> bool:
        return place == PLACE

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
