"""Transfers between a tier and a device with memory of its own, by way of host blocks.

A transfer is cut into pieces, as large as there is host memory for. A piece that is stored is copied to host memory
beside the steps, and is the tier's from then on; one that is loaded goes the other way. The tier reads and writes host
memory alone.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from msgspec import Struct
from msgspec.structs import replace

from inflight.core.types.plan import Transfer, Transferred
from inflight.execution.backends.protocol import PendingCopy
from inflight.execution.kv.block_memory import KVMemory
from inflight.execution.kv.block_transfers import TierTransfers, copy_error

STAGING_BLOCKS, STAGING_STATES = 32, 2  # of host memory, for a folder
PEER_BYTES, PEER_STATES = 2 << 30, 16  # the same, for peers; the bytes are of blocks
_CLOSING = 5.0  # seconds for copies in flight, at the end

CopyUnits = Callable[[Sequence[int], Sequence[int]], PendingCopy | None]
Unit = tuple[int, int, int]  # group, block or slot of the device, number in the tier


class HostStaging(Struct, frozen=True):
    """Host memory by which blocks and checkpoints go to a tier and come back.

    Attributes:
        memory: Of the host blocks and host snapshots, each numbered from 0.
        first_block: Number of the first of these blocks for `copy_blocks`.
        first_snapshot: Number of the first of these snapshots for `copy_snapshots`.
        copy_blocks: Begins to copy blocks, as `Device.copy_blocks` of the KV cache.
        copy_snapshots: The same, of snapshots.
    """

    memory: KVMemory
    first_block: int
    first_snapshot: int
    copy_blocks: CopyUnits
    copy_snapshots: CopyUnits

    def split(self, blocks: int, states: int) -> tuple[HostStaging, HostStaging]:
        """Return the first so many blocks and checkpoints, and the others."""
        memory = self.memory
        first_blocks, other_blocks = memory.blocks.split(blocks)
        first_states, other_states = (None, None) if memory.states is None else memory.states.split(states)
        first = replace(self, memory=replace(memory, blocks=first_blocks, states=first_states))
        others = replace(memory, blocks=other_blocks, states=other_states)
        moved = {"first_block": self.first_block + blocks, "first_snapshot": self.first_snapshot + states}
        return first, replace(self, memory=others, **moved)


@dataclass(slots=True)
class _Staged:
    """A transfer. pieces: that have not begun. num_begun: pieces in flight."""

    transfer: Transfer
    pieces: deque[list[Unit]]
    num_begun: int = 0
    error: str | None = None


@dataclass(slots=True)
class _Piece:
    """A piece in flight. host: its numbers in host memory. copies: in flight; None: the tier has the piece."""

    whole: _Staged
    units: list[Unit]
    host: list[int]
    copies: list[PendingCopy] | None = field(default=None)


class StagedTransfers:
    """The `TierTransfers` of a device with memory of its own."""

    def __init__(self, tier: TierTransfers, staging: HostStaging):
        """Transfer by way of host memory. tier: transfers between that memory and the tier."""
        self._tier, self._staging = tier, staging
        memory = staging.memory
        self._state_group = memory.state_group
        num_states = 0 if memory.states is None else memory.states.num_blocks
        self._free = {False: list(range(memory.blocks.num_blocks)), True: list(range(num_states))}  # by is_state
        self._sizes = {is_state: len(free) for is_state, free in self._free.items()}
        self._waiting: deque[_Staged] = deque()  # with pieces that have not begun
        self._pieces: dict[int, _Piece] = {}  # in flight, by the number that the tier has of them
        self._num_transfers = 0  # in flight
        self._last_piece = 0
        self._ended: list[Transferred] = []

    def serves(self, tier: str) -> bool:
        return self._tier.serves(tier)

    def begin(self, transfer: Transfer) -> None:
        units = [(*unit, number) for unit, number in zip(transfer.units(), transfer.remote_blocks, strict=True)]
        self._num_transfers += 1
        self._waiting.append(_Staged(transfer, deque(self._cut(units))))
        self._begin_pieces()

    def poll(self) -> Sequence[Transferred] | None:
        if not self._num_transfers and not self._ended:
            return None
        for number, piece in tuple(self._pieces.items()):
            if piece.copies is not None:
                self._poll_copies(number, piece)
        for one in self._tier.poll() or ():
            self._tier_ended(one)
        self._begin_pieces()
        ended, self._ended = self._ended, []
        return ended

    def close(self) -> None:
        last = time.monotonic() + _CLOSING
        while any(one.copies is not None for one in self._pieces.values()) and time.monotonic() < last:
            self.poll()
            time.sleep(0.001)
        self._tier.close()

    def _cut(self, units: list[Unit]) -> Iterator[list[Unit]]:
        """Cut into pieces of one kind of memory, each no more than half of it, so that pieces overlap."""
        piece: list[Unit] = []
        for unit in units:
            is_state = self._is_state(unit)
            if piece and (self._is_state(piece[0]) != is_state or len(piece) >= max(1, self._sizes[is_state] // 2)):
                yield piece
                piece = []
            piece.append(unit)
        if piece:
            yield piece

    def _is_state(self, unit: Unit) -> bool:
        return unit[0] == self._state_group

    def _begin_pieces(self) -> None:
        """Begin the next pieces, in order, while there is host memory for them."""
        while self._waiting:
            whole = self._waiting[0]
            if whole.error is not None:
                whole.pieces.clear()
            if not whole.pieces:
                self._waiting.popleft()
                self._end_if_done(whole)
                continue
            units = whole.pieces[0]
            free = self._free[self._is_state(units[0])]
            if len(free) < len(units):
                return
            whole.pieces.popleft()
            whole.num_begun += 1
            self._last_piece += 1
            piece = self._pieces[self._last_piece] = _Piece(whole, units, [free.pop() for _ in units])
            if whole.transfer.kind == "store":
                self._begin_copies(self._last_piece, piece)
            else:
                self._begin_tier(self._last_piece, piece)

    def _begin_copies(self, number: int, piece: _Piece) -> None:
        """Begin to copy a piece, to host memory or from it."""
        staging, is_state = self._staging, self._is_state(piece.units[0])
        first = staging.first_snapshot if is_state else staging.first_block
        device = [block for _, block, _ in piece.units]
        host = [first + at for at in piece.host]
        is_store = piece.whole.transfer.kind == "store"
        copy = staging.copy_snapshots if is_state else staging.copy_blocks
        try:
            copying = copy(device, host) if is_store else copy(host, device)
        except Exception as fault:  # no fault of a copy beside the steps ends one
            self._end_piece(number, copy_error(fault))
            return
        piece.copies = [] if copying is None else [copying]
        self._poll_copies(number, piece)

    def _poll_copies(self, number: int, piece: _Piece) -> None:
        """Go on with a piece whose copies are done."""
        try:
            if not all(one.query() for one in piece.copies or ()):
                return
        except Exception as fault:  # the device's
            self._end_piece(number, copy_error(fault))
            return
        piece.copies = None
        if piece.whole.transfer.kind == "store":
            self._begin_tier(number, piece)
        else:
            self._end_piece(number, None)

    def _begin_tier(self, number: int, piece: _Piece) -> None:
        """Have the tier read or write a piece in host memory."""
        transfer = piece.whole.transfer
        numbers = tuple(unit[2] for unit in piece.units)
        groups = tuple(unit[0] for unit in piece.units) if transfer.groups else ()
        try:
            self._tier.begin(Transfer(number, transfer.kind, transfer.tier, tuple(piece.host), numbers, groups))
        except Exception as fault:  # no fault of a tier ends a step
            self._end_piece(number, f"Blocks could not be transferred ({type(fault).__name__}: {fault}).")

    def _tier_ended(self, one: Transferred) -> None:
        piece = self._pieces[one.transfer_id]
        if one.error is None and piece.whole.transfer.kind == "load":
            self._begin_copies(one.transfer_id, piece)
        else:
            self._end_piece(one.transfer_id, one.error)

    def _end_piece(self, number: int, error: str | None) -> None:
        piece = self._pieces.pop(number)
        self._free[self._is_state(piece.units[0])] += piece.host
        whole = piece.whole
        whole.num_begun -= 1
        whole.error = whole.error or error
        self._end_if_done(whole)

    def _end_if_done(self, whole: _Staged) -> None:
        if not whole.num_begun and not whole.pieces and whole not in self._waiting:
            self._num_transfers -= 1
            self._ended.append(Transferred(whole.transfer.transfer_id, whole.error))
