"""One budget of bytes for all bodies that are in memory, whoever sent them.

Bytes count when they have come, not when they are announced, until the one who used the body lets go of them. One owner
(a tenant, or an address where there are no keys) may hold a share of it only.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from dataclasses import dataclass

from inflight.server.errors import ApiError

SMALL_BYTES = 1 << 16  # of a body that is not told to wait for large ones
SMALL_ROOM_BYTES = 4 << 20  # for all of those, beyond the budget
_PATIENCE = 2.0  # seconds that a body waits for others to go, in all: it holds what it has meanwhile
_MOST_WAITING = 64  # bodies; each has one piece in its hands that is not counted yet
_MOST_WAITING_OF_ONE = 16


class BodyLease:
    """Bytes of one body. Released once is released for good."""

    __slots__ = ("_budget", "_released", "held", "owner", "patience")

    def __init__(self, budget: BodyBudget, owner: str, patience: float):
        self._budget = budget
        self.owner = owner
        self.held = 0
        self.patience = patience  # seconds that it may still wait for others to go
        self._released = False

    async def grow(self, size: int) -> None:
        """Hold so many bytes more; waits a while for room. Raises ApiError 503 when there is none."""
        await self._budget.take(self, size)

    def release(self) -> None:
        """The body is not kept any more."""
        if not self._released:
            self._released = True
            self._budget.give_back(self)


@dataclass(slots=True, eq=False)
class _Waiting:
    lease: BodyLease
    size: int
    granted: asyncio.Future[None]


class BodyBudget:
    def __init__(
        self,
        most: int,
        share: int,
        patience: float = _PATIENCE,
        small: int = SMALL_BYTES,
    ):
        """most, share: bytes of all, and of one owner. small: bytes of a body that finds room beside large ones."""
        self.most = most
        self._share = share
        self._patience = patience
        self._small = small
        self._owners: Counter[str] = Counter()
        self._waiting: list[_Waiting] = []
        self.held = 0

    def lease(self, owner: str) -> BodyLease:
        return BodyLease(self, owner, self._patience)

    async def take(self, lease: BodyLease, size: int) -> None:
        if self._fits(lease, size):
            self._grant(lease, size)
            return
        of_one = sum(one.lease.owner == lease.owner for one in self._waiting)
        if len(self._waiting) >= _MOST_WAITING or of_one >= _MOST_WAITING_OF_ONE:
            raise self._full(lease, size)
        waiting = _Waiting(lease, size, asyncio.get_running_loop().create_future())
        self._waiting.append(waiting)
        started = time.monotonic()
        try:
            await asyncio.wait((waiting.granted,), timeout=max(0.0, lease.patience))
        finally:
            lease.patience -= time.monotonic() - started
            if not waiting.granted.done():
                self._waiting.remove(waiting)
        if not waiting.granted.done():
            raise self._full(lease, size)

    def give_back(self, lease: BodyLease) -> None:
        self.held -= lease.held
        self._owners[lease.owner] -= lease.held
        if not self._owners[lease.owner]:
            del self._owners[lease.owner]
        lease.held = 0
        for waiting in tuple(self._waiting):  # the longest waiting first, of those for whom there is room
            if self._fits(waiting.lease, waiting.size):
                self._waiting.remove(waiting)
                self._grant(waiting.lease, waiting.size)
                waiting.granted.set_result(None)

    def _fits(self, lease: BodyLease, size: int) -> bool:
        # Large bodies of a few owners may fill all; what nearly every request has finds room beside them.
        beside = SMALL_ROOM_BYTES if lease.held + size <= self._small else 0
        return self.held + size <= self.most + beside and self._owners[lease.owner] + size <= self._share

    def _grant(self, lease: BodyLease, size: int) -> None:
        self.held += size
        self._owners[lease.owner] += size
        lease.held += size

    def _full(self, lease: BodyLease, size: int) -> ApiError:
        if self.held + size > self.most:
            why = f"Bodies of {self.held:,} bytes are in memory, of at most {self.most:,} (--body-budget-mb)"
        else:
            held = self._owners[lease.owner]
            why = f"Your requests have bodies of {held:,} bytes in memory, of at most {self._share:,}"
        return ApiError(
            503,
            f"{why}; try again in {self._patience:g} s, with fewer at once.",
            type="server_error",
            code="body_budget",
            retry_after=self._patience,
        )
