"""Transfers with peers for a device with memory of its own, by way of host blocks.

Exported blocks are copied to host memory, where peers read them, and are free on the device as soon as they are copied.
Pulled blocks come into host memory, and are copied to the device from there. All copies go on beside the steps. A
thread watches those of exported blocks: peers may wait for the last ones of an engine that has nothing more to do.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from msgspec.structs import replace

from inflight.core.types.kv_transfer import export_of
from inflight.core.types.plan import Transfer, Transferred
from inflight.execution.backends.protocol import PendingCopy
from inflight.execution.kv.block_transfers import copy_error, take_ended
from inflight.execution.kv.offload.staging import HostStaging
from inflight.execution.kv.transfer.peer_transfers import PeerTransfers

_CLOSING = 5.0  # seconds for copies in flight, at the end
_TICK = 0.0005  # seconds between two queries of copies
_ABANDONED = "The transfer was broken off."

log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Staged:
    """A transfer with host blocks of its own.

    Attributes:
        transfer: Of the device's blocks.
        here: Host blocks, one to one.
        copies: In flight, to host memory or from it; the host blocks are in use until there are none.
        error: Why not all blocks are copied.
    """

    transfer: Transfer
    here: tuple[int, ...]
    copies: list[PendingCopy] = field(default_factory=list)
    error: str | None = None

    def take_copies(self) -> bool:
        """Return whether the copies have ended, and note an error of the device."""
        if errors := take_ended(self.copies):
            self.error = errors[0]
        return not self.copies


class StagedPeers:
    """The `TierTransfers` of peers for such a device."""

    def __init__(self, peers: PeerTransfers, staging: HostStaging):
        """Transfer by way of host memory. peers: transfers between that memory and peers."""
        self._peers, self._staging = peers, staging
        memory = staging.memory
        num_states = 0 if memory.states is None else memory.states.num_blocks
        self._sizes = {False: memory.blocks.num_blocks, True: num_states}  # by whether it is of checkpoints
        self._free = {is_state: list(range(size)) for is_state, size in self._sizes.items()}
        self._storing: queue.SimpleQueue[_Staged | None] = queue.SimpleQueue()  # sends with copies in flight, in order
        self._thread = threading.Thread(target=self._watch, name="inflight-kv-stage", daemon=True)
        self._lock = threading.RLock()  # for what follows
        self._sending: list[_Staged] = []  # sends whose copies are in flight
        self._waiting: deque[Transfer] = deque()  # pulls without host blocks
        self._with_peers: dict[int, _Staged] = {}  # by id
        self._loading: list[_Staged] = []  # pulls whose copies are in flight
        self._ended: list[Transferred] = []

    def serves(self, tier: str) -> bool:
        return self._peers.serves(tier)

    def begin(self, transfer: Transfer) -> None:
        with self._lock:
            self._take_ended()
            if transfer.kind == "send":
                self._begin_send(transfer)
            else:
                self._waiting.append(transfer)
                self._begin_pulls()

    def poll(self) -> Sequence[Transferred] | None:
        with self._lock:
            is_polled = self._take_ended()
            for staged in tuple(self._loading):
                if staged.take_copies():
                    self._loading.remove(staged)
                    self._end_pull(staged, staged.error)
            self._begin_pulls()
            ended, self._ended = self._ended, []
            is_in_flight = self._sending or self._waiting or self._loading or self._with_peers
            return ended if ended or is_in_flight or is_polled else None

    def abandon(self) -> None:
        """End all transfers as soon as possible: their blocks have no owner any more."""
        with self._lock:
            self._ended += [Transferred(one.transfer_id, _ABANDONED) for one in self._waiting]
            self._waiting.clear()
            for staged in self._sending:
                staged.error = _ABANDONED
            self._peers.abandon()

    def close(self) -> None:
        last = time.monotonic() + _CLOSING
        while (self._sending or self._loading) and time.monotonic() < last:
            self.poll()
            time.sleep(_TICK)
        self._storing.put(None)
        self._peers.close()

    def _watch(self) -> None:
        """Have peers read exported blocks as soon as they are copied."""
        while (staged := self._storing.get()) is not None:
            while not staged.take_copies():
                time.sleep(_TICK)
            with self._lock:
                self._sending.remove(staged)
                self._end_send(staged)

    def _begin_send(self, transfer: Transfer) -> None:
        """Begin to copy exported blocks to host memory; the end of an export follows them."""
        if not self._thread.is_alive():
            self._thread.start()
        here = self._allocate(transfer)
        if here is None:
            log.warning(
                "Host memory holds too many exported blocks for %d more; their prompt is not exported.",
                len(transfer.blocks),
            )
            self._withdraw(transfer)
            self._ended.append(Transferred(transfer.transfer_id))
            return
        staged = _Staged(transfer, here)
        self._copy(staged, to_host=True)
        self._sending.append(staged)
        self._storing.put(staged)

    def _end_send(self, staged: _Staged) -> None:
        """Have peers read exported blocks that are copied; the device's are free then."""
        transfer = staged.transfer
        self._ended.append(Transferred(transfer.transfer_id, staged.error))
        if staged.error is None:
            self._begin_with_peers(staged)
        else:
            self._end_export(staged)

    def _begin_pulls(self) -> None:
        """Begin the next pulls, in order, while there is host memory for them."""
        while self._waiting:
            transfer = self._waiting[0]
            counts = self._counts(transfer)
            if any(count > self._sizes[is_state] for is_state, count in counts.items()):
                sizes = f"{self._sizes[False]} blocks and {self._sizes[True]} checkpoints"
                error = f"Host memory for peers has {sizes}, and the prompt {counts[False]} and {counts[True]}."
                self._ended.append(Transferred(self._waiting.popleft().transfer_id, error))
                continue
            here = self._allocate(transfer)
            if here is None:
                return
            self._begin_with_peers(_Staged(self._waiting.popleft(), here))

    def _begin_with_peers(self, staged: _Staged) -> None:
        """Begin a transfer between its host blocks and peers, with the same id."""
        try:
            self._peers.begin(replace(staged.transfer, blocks=staged.here))
        except Exception as fault:  # no fault of a transfer ends a step, or the thread
            log.exception("a transfer with a peer does not begin")
            if staged.transfer.kind == "send":
                self._end_export(staged)
            else:
                self._end_pull(staged, copy_error(fault))
        else:
            self._with_peers[staged.transfer.transfer_id] = staged

    def _take_ended(self) -> bool:
        """Take the transfers that have ended with peers; return whether any was in flight."""
        ended = self._peers.poll()
        for one in ended or ():
            staged = self._with_peers.pop(one.transfer_id)
            if staged.transfer.kind == "send":
                self._release(staged)
            elif one.error is not None:
                self._end_pull(staged, one.error)
            else:
                self._copy(staged, to_host=False)
                self._loading.append(staged)
        return ended is not None

    def _end_pull(self, staged: _Staged, error: str | None) -> None:
        self._release(staged)
        self._ended.append(Transferred(staged.transfer.transfer_id, error))

    def _end_export(self, staged: _Staged) -> None:
        """End the export of a send that peers cannot read."""
        self._release(staged)
        self._withdraw(staged.transfer)

    def _withdraw(self, transfer: Transfer) -> None:
        """End the export of a send, of which blocks are missing."""
        export_id = export_of(transfer.tier)
        assert export_id is not None, "core makes these tiers"
        self._peers.withdraw(export_id)

    # -- host memory ------------------------------------------------------------------------------------------------
    def _is_state(self, group: int) -> bool:
        return group == self._staging.memory.state_group

    def _counts(self, transfer: Transfer) -> dict[bool, int]:
        states = sum(self._is_state(group) for group, _ in transfer.units())
        return {False: len(transfer.blocks) - states, True: states}

    def _allocate(self, transfer: Transfer) -> tuple[int, ...] | None:
        """Return host blocks for a transfer; None: too few are free."""
        if any(count > len(self._free[is_state]) for is_state, count in self._counts(transfer).items()):
            return None
        return tuple(self._free[self._is_state(group)].pop() for group, _ in transfer.units())

    def _release(self, staged: _Staged) -> None:
        for (group, _), number in zip(staged.transfer.units(), staged.here, strict=True):
            self._free[self._is_state(group)].append(number)

    def _copy(self, staged: _Staged, *, to_host: bool) -> None:
        """Begin the copies between a transfer's blocks and its host blocks."""
        staging, units = self._staging, list(zip(staged.transfer.units(), staged.here, strict=True))
        kinds = (
            (False, staging.first_block, staging.copy_blocks),
            (True, staging.first_snapshot, staging.copy_snapshots),
        )
        for is_state, first, copy in kinds:
            device = [block for (group, block), _ in units if self._is_state(group) == is_state]
            host = [first + number for (group, _), number in units if self._is_state(group) == is_state]
            try:
                pending = (copy(device, host) if to_host else copy(host, device)) if device else None
            except Exception as fault:  # no fault of a copy beside the steps ends one
                staged.error = copy_error(fault)
                return
            if pending is not None:
                staged.copies.append(pending)
