"""Carries out the transfers of an engine's plans.

The device's backend copies blocks to and from the host, within their step or, where it can, beside the steps.
`TierTransfers` serve the other tiers, always beside the steps. A transfer that fails beside the steps fails alone: the
contents of its blocks are not used, and the step that it was begun with goes on.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Protocol

from inflight.core.types.plan import HOST, BatchPlan, Capacity, Transfer, Transferred
from inflight.execution.backends.protocol import PendingCopy

_TICK = 0.0005  # seconds between two polls of a waiting caller
Copy = Callable[[Sequence[int], Sequence[int]], Sequence[PendingCopy]]


class TierTransfers(Protocol):
    """Transfers with a folder or with peers, beside the steps."""

    def serves(self, tier: str) -> bool:
        """Return whether a `Transfer.tier` is one of these."""

    def begin(self, transfer: Transfer) -> None:
        """Begin a transfer and return at once. Called on the thread that runs the steps, behind earlier steps' work."""

    def poll(self) -> Sequence[Transferred] | None:
        """Return the transfers that have ended since the last call, each once; None: none is in flight."""

    def close(self) -> None:
        """End all transfers soon, successfully or not; afterwards no block is read or written."""


class BlockTransfers:
    def __init__(self, capacity: Capacity, copy: Copy, tiers: Sequence[TierTransfers] = ()) -> None:
        """Transfer blocks of a cache, which has the capacity's device blocks, one for padding, then the host's.

        Args:
            capacity: Limits of the executor.
            copy: Begins to copy whole blocks: copy(sources, destinations) returns the copies in flight.
            tiers: Tiers beyond the host.
        """
        self._tiers = tiers
        self._first_host = capacity.num_blocks + 1
        self._asynchronous = capacity.asynchronous_transfers
        self._copy = copy
        self._in_flight: dict[int, tuple[list[PendingCopy], list[str]]] = {}  # copies, and errors of those that failed
        self._failed: list[Transferred] = []

    def begin(self, plan: BatchPlan) -> None:
        """Begin a plan's transfers, before it computes. An error of copies within the step is the step's; transfers
        with other tiers are begun all the same."""
        try:
            if not self._asynchronous:
                self._copy_within(plan)
        finally:
            for transfer in plan.transfers:
                if transfer.tier != HOST:
                    self._begin_with_tier(transfer)
                elif self._asynchronous:
                    self._begin(transfer)

    def poll(self, seconds: float = 0.0) -> tuple[Transferred, ...] | None:
        """Return the transfers that have ended, as `Executor.poll` does."""
        last = time.monotonic() + seconds
        while not (ended := self._ended()) and ended is not None and time.monotonic() < last:
            time.sleep(_TICK)
        return ended

    def close(self) -> None:
        for tier in self._tiers:
            tier.close()

    def _copy_within(self, plan: BatchPlan) -> None:
        """Copy to the host, then back, before anything writes to blocks whose content goes to the host."""
        if stored := plan.copies("store"):
            self._copy([block for block, _ in stored], [self._first_host + host for _, host in stored])
        if loaded := plan.copies("load"):
            self._copy([self._first_host + host for _, host in loaded], [block for block, _ in loaded])

    def _begin_with_tier(self, transfer: Transfer) -> None:
        tier = next((one for one in self._tiers if one.serves(transfer.tier)), None)
        try:
            if tier is None:
                raise LookupError(f"no tier {transfer.tier!r} is open")
            tier.begin(transfer)
        except Exception as fault:  # no fault of a tier ends the step
            self._failed.append(_failed(transfer.transfer_id, fault))

    def _begin(self, transfer: Transfer) -> None:
        remote = [self._first_host + block for block in transfer.remote_blocks]
        both = (transfer.blocks, remote) if transfer.kind == "store" else (remote, transfer.blocks)
        try:
            self._in_flight[transfer.transfer_id] = [*self._copy(*both)], []
        except Exception as fault:  # no fault of a copy beside the steps ends one
            self._failed.append(_failed(transfer.transfer_id, fault))

    def _ended(self) -> tuple[Transferred, ...] | None:
        """Return the transfers that have ended; None: none was in flight."""
        by_tier = [one.poll() for one in self._tiers]
        if not self._in_flight and not self._failed and not any(one is not None for one in by_tier):
            return None
        ended, self._failed = self._failed, []
        for one in by_tier:
            ended += one or ()
        for transfer_id, (copies, errors) in tuple(self._in_flight.items()):
            errors += take_ended(copies)
            if not copies:
                ended.append(Transferred(transfer_id, errors[0] if errors else None))
                del self._in_flight[transfer_id]
        return tuple(ended)


def take_ended(copies: list[PendingCopy]) -> list[str]:
    """Remove the copies that have ended; return the errors of those that failed. The others still use their memory."""
    errors = []
    for copy in tuple(copies):
        try:
            if not copy.query():
                continue
        except Exception as fault:  # the device's
            errors.append(copy_error(fault))
        copies.remove(copy)
    return errors


def copy_error(fault: Exception) -> str:
    return f"Blocks could not be copied ({type(fault).__name__}: {fault})."


def _failed(transfer_id: int, fault: Exception) -> Transferred:
    return Transferred(transfer_id, copy_error(fault))
