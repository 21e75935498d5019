"""One budget of bytes for all bodies in memory.

Bytes count when they have come, not when they are announced, until the last user of the body releases them. Before it
is read, a body reserves its length in a share of its owner (a tenant, or an address where there are no keys); where the
share is used it waits, and its connection is not read. So an owner's bodies never wait for each other half-read, and a
slow one delays those of its owner alone. Small bodies have shares of their own, and room beside large ones.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from weakref import WeakValueDictionary

from inflight.server.errors import ApiError

SMALL_BYTES = 1 << 16
SMALL_ROOM_BYTES = 4 << 20  # for small bodies, beyond the budget
PATIENCE = 2.0  # seconds that a body waits for room in the budget while no other body is released
MAX_WAITING, MAX_WAITING_OF_ONE = 256, 128  # bodies; each has up to 192 KiB in memory that do not count yet


class BodyLease:
    """The bytes of one body."""

    def __init__(self, budget: BodyBudget, owner: str):
        self._budget, self.owner = budget, owner
        self.held = self.reserved = 0
        self.is_large = self.is_unknown = False

    async def reserve(self, size: int | None) -> None:
        """Wait until the owner's share has room for the body. Raises ApiError 503 where too many wait already.

        Args:
            size: Bytes of the body. None: unknown, so that it is small until it has grown.
        """
        self.is_unknown = size is None
        await self._budget.reserve(self, self._budget.small if size is None else size)

    async def grow(self, size: int) -> None:
        """Hold `size` bytes more. Raises ApiError 503 where there is no room, and none becomes free for a while."""
        await self._budget.hold(self, size)

    def complete(self) -> None:
        """Give back what was reserved beyond the bytes that are held: the body has been read."""
        self._budget.free(self, 0, self.reserved - self.held)

    def release(self) -> None:
        """Give back everything; the first call counts."""
        self._budget.free(self, self.held, self.reserved)


class BodyBudget:
    def __init__(self, most: int, share: int, longest: int, patience: float = PATIENCE, small: int = SMALL_BYTES):
        """Create an empty budget.

        Args:
            most: Bytes of all bodies.
            share: Bytes of one owner's large bodies, and of its small ones.
            longest: Bytes of one body, at most `share`.
            patience: Seconds that a body waits for room while no other is released.
            small: Bytes of a small body.
        """
        self.longest, self.small = longest, min(small, longest)
        self._most, self._share, self._patience = most, share, patience
        self.held = 0
        self._reserved: Counter[tuple[str, bool]] = Counter()
        self._locks: WeakValueDictionary[tuple[str, bool], asyncio.Lock] = WeakValueDictionary()
        self._waiting: Counter[str] = Counter()
        self._freed = asyncio.Event()  # a new one each time

    def lease(self, owner: str) -> BodyLease:
        return BodyLease(self, owner)

    async def reserve(self, lease: BodyLease, size: int) -> None:
        key = lease.owner, size > self.small
        lock = self._locks.setdefault(key, asyncio.Lock())  # one waits for room, the others for it
        if not lock.locked() and self._reserved[key] + size <= self._share:
            return self._take(lease, key, size)
        if self._waiting[lease.owner] >= MAX_WAITING_OF_ONE or self._waiting.total() >= MAX_WAITING:
            raise self._refusal(
                f"Too many bodies wait for memory: {self._waiting[lease.owner]} of yours, at most "
                f"{MAX_WAITING_OF_ONE}; {self._waiting.total()} in all, at most {MAX_WAITING}"
            )
        self._waiting[lease.owner] += 1
        try:
            async with lock:
                while self._reserved[key] + size > self._share:
                    await self._freed.wait()
                self._take(lease, key, size)
        finally:
            self._waiting[lease.owner] -= 1
            self._waiting += Counter()  # forget owners without

    def _take(self, lease: BodyLease, key: tuple[str, bool], size: int) -> None:
        before = lease.reserved  # as a small body, where this one has grown
        self._reserved[key] += size
        self._free_share(lease, before)
        lease.reserved, lease.is_large = size, key[1]

    async def hold(self, lease: BodyLease, size: int) -> None:
        if lease.held + size > lease.reserved and not lease.is_large:
            # A large one that waited for more of the share would hold what others wait for.
            await self.reserve(lease, self.longest if lease.is_unknown else lease.held + size)
        most = self._most + (0 if lease.is_large else SMALL_ROOM_BYTES)
        while self.held + size > most:
            try:
                async with asyncio.timeout(self._patience):
                    await self._freed.wait()
            except TimeoutError:
                raise self._refusal(
                    f"Bodies in memory have {self.held:,} bytes, and the maximum is {self._most:,} (--body-budget-mb)"
                ) from None
        self.held += size
        lease.held += size

    def free(self, lease: BodyLease, held: int, reserved: int) -> None:
        """Give back bytes of the budget and of the owner's share."""
        self.held -= held
        lease.held -= held
        self._free_share(lease, max(0, reserved))
        self._freed.set()
        self._freed = asyncio.Event()

    def _free_share(self, lease: BodyLease, size: int) -> None:
        key = lease.owner, lease.is_large
        lease.reserved -= size
        self._reserved[key] -= size
        if not self._reserved[key]:
            del self._reserved[key]

    def _refusal(self, why: str) -> ApiError:
        return ApiError(
            503,
            f"{why}; try again in {self._patience:g} s, with fewer at once.",
            type="server_error",
            code="body_budget",
            retry_after=self._patience,
        )
