"""Transfers of blocks: those that the plan under construction asks for, and those in flight.

A transfer in flight holds a reference to each of its device blocks. Where the executor is not asynchronous (a CPU), a
transfer with the host's memory ends within its step, and counts as ended once its plan is complete; transfers with
folders and peers are always beside the steps.
"""

from __future__ import annotations

from collections.abc import Callable

from inflight.core.kv.block_pool import BlockPool
from inflight.core.types.plan import HOST, Transfer, TransferKind


class Transfers:
    def __init__(self, pool: BlockPool, asynchronous: bool):
        """Create it without transfers. asynchronous: whether transfers with the host are beside the steps, too."""
        self.asynchronous = asynchronous
        self.in_flight: dict[int, Transfer] = {}
        self._pool = pool
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
    ) -> int:
        """Add a transfer to the plan under construction.

        Args:
            kind: As in `Transfer`, like the next three.
            tier: Of the other side: the host, a tier or a peer.
            blocks: Device blocks.
            remote_blocks: Their counterparts there.
            on_end: Called once, with whether the transfer succeeded.

        Returns:
            The transfer's id.
        """
        transfer = Transfer(self.new_transfer_id(), kind, tier, blocks, remote_blocks)
        self._planned.append(transfer)
        self._on_end[transfer.transfer_id] = on_end
        if self._is_asynchronous(tier):
            self.in_flight[transfer.transfer_id] = transfer
            for block in blocks:
                self._pool.acquire(block)
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
        self._pool.release(reversed(transfer.blocks))

    @property
    def is_busy(self) -> bool:
        """Whether a transfer is in flight, but for exports, which wait for a peer."""
        return any(one.kind != "send" for one in self.in_flight.values())

    def blocks_in_flight(self) -> tuple[int, ...]:
        """Return the device blocks of transfers in flight."""
        return tuple(block for one in self.in_flight.values() for block in one.blocks)

    def host_blocks_in_flight(self) -> tuple[int, ...]:
        """Return the host blocks of transfers in flight."""
        return tuple(block for one in self.in_flight.values() if one.tier == HOST for block in one.remote_blocks)

    def _is_asynchronous(self, tier: str) -> bool:
        return self.asynchronous or tier != HOST
