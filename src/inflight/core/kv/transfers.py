"""Transfers of blocks: those that the plan under construction asks for, and those in flight.

A transfer in flight holds a reference to each of its device blocks, and to each of its slots of checkpoints. Where the
executor is not asynchronous (a CPU), a transfer with the host's memory ends within its step, and counts as ended once
its plan is complete; transfers with folders and peers are always beside the steps.
"""

from __future__ import annotations

from collections.abc import Callable

from inflight.core.kv.block_pool import BlockPool
from inflight.core.kv.state_checkpoints import CheckpointSlots
from inflight.core.types.plan import HOST, Transfer, TransferKind


class Transfers:
    def __init__(self, pool: BlockPool, slots: CheckpointSlots, state_group: int, asynchronous: bool):
        """Create it without transfers.

        Args:
            pool: Device blocks.
            slots: Slots of checkpoints.
            state_group: Number of the recurrent state among groups, as in `Transfer`.
            asynchronous: Whether transfers with the host are beside the steps, too.
        """
        self.asynchronous = asynchronous
        self.in_flight: dict[int, Transfer] = {}
        self._pool, self._slots, self._state_group = pool, slots, state_group
        self._on_end: dict[int, Callable[[bool], None]] = {}
        self._planned: list[Transfer] = []
        self._last_id = 0

    def begin(
        self,
        kind: TransferKind,
        tier: str,
        blocks: tuple[int, ...],
        remote_blocks: tuple[int, ...],
        on_end: Callable[[bool], None] = lambda done: None,
        groups: tuple[int, ...] = (),
    ) -> int:
        """Add a transfer to the plan under construction.

        Args:
            kind: As in `Transfer`, like the next three, and groups.
            tier: Of the other side: the host, a tier or a peer.
            blocks: Device blocks.
            remote_blocks: Their counterparts there.
            on_end: Called once, with whether the transfer succeeded.

        Returns:
            The transfer's id.
        """
        groups = groups if any(groups) else ()
        transfer = Transfer(self.new_transfer_id(), kind, tier, blocks, remote_blocks, groups)
        self._planned.append(transfer)
        self._on_end[transfer.transfer_id] = on_end
        if self._is_asynchronous(tier):
            self.in_flight[transfer.transfer_id] = transfer
            for block in self._kv_blocks(transfer):
                self._pool.acquire(block)
            for slot in self._state_slots(transfer):
                self._slots.hold(slot)
        return transfer.transfer_id

    def new_transfer_id(self) -> int:
        """Return the next id; other work beside the steps uses the same count."""
        self._last_id += 1
        return self._last_id

    def take_planned(self) -> tuple[Transfer, ...]:
        """Return the transfers of the plan, which is complete: stores before loads."""
        if not self._planned:
            return ()
        planned, self._planned = self._planned, []
        for transfer in planned:
            if not self._is_asynchronous(transfer.tier):
                self._on_end.pop(transfer.transfer_id)(True)
        return tuple(sorted(planned, key=lambda transfer: transfer.kind == "load"))

    def end_transfer(self, transfer_id: int, done: bool) -> None:
        """End a transfer in flight. done: whether it succeeded."""
        transfer = self.in_flight.pop(transfer_id)
        self._on_end.pop(transfer_id)(done)
        self._pool.release(reversed(self._kv_blocks(transfer)))
        for slot in self._state_slots(transfer):
            self._slots.release(slot)

    @property
    def is_busy(self) -> bool:
        """Whether a transfer is in flight, but for exports, which wait for a peer."""
        return bool(self.in_flight) and any(one.kind != "send" for one in self.in_flight.values())

    def blocks_in_flight(self) -> tuple[int, ...]:
        """Return the device blocks of transfers in flight."""
        return tuple(block for one in self.in_flight.values() for block in self._kv_blocks(one))

    def host_blocks_in_flight(self) -> tuple[int, ...]:
        """Return the host blocks of transfers in flight."""
        return tuple(block for one in self.in_flight.values() if one.tier == HOST for block in one.remote_blocks)

    def _kv_blocks(self, transfer: Transfer) -> tuple[int, ...]:
        """Return the blocks of all KV groups."""
        if not transfer.groups:
            return transfer.blocks
        return tuple(block for group, block in transfer.units() if group != self._state_group)

    def _state_slots(self, transfer: Transfer) -> tuple[int, ...]:
        if not transfer.groups:
            return ()
        return tuple(slot for group, slot in transfer.units() if group == self._state_group)

    def _is_asynchronous(self, tier: str) -> bool:
        return self.asynchronous or tier != HOST
