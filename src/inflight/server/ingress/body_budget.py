"""One budget of bytes for all bodies in memory.

Bytes count when they have come, not when they are announced, until the last user of the body releases them. One owner
(a tenant, or an address where there are no keys) has a share of the budget. A body beyond 64 KiB reserves its whole
length in the share of its owner before it is read; where the share is used it waits, and its connection is not read.
So bodies of one owner never wait for each other half-read, and a slow one delays those of its owner alone.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass

from inflight.counted import counted
from inflight.server.errors import ApiError

SMALL_BYTES = 1 << 16  # of a body that does not wait for large ones
UNKNOWN_BYTES = 1 << 20  # reserved for a body of unknown length once it is not small; beyond, as it grows
SMALL_ROOM_BYTES = 4 << 20  # for all of those, beyond the budget
_PATIENCE = 2.0  # seconds that a body which holds bytes waits while no other body is released
_MAX_WAITING = 256  # bodies; each has one piece in memory that does not count yet
_MAX_WAITING_OF_ONE = 128


class BodyLease:
    """The bytes of one body."""

    __slots__ = ("_budget", "_released", "held", "owner", "reserved")

    def __init__(self, budget: BodyBudget, owner: str):
        self._budget = budget
        self.owner = owner
        self.held = 0
        self.reserved = 0  # bytes of the owner's share; 0: a small body
        self._released = False

    async def reserve(self, size: int | None) -> None:
        """Wait until the owner's share has room for the whole body. A small body needs none.

        Args:
            size: Bytes of the body. None: unknown, and not small.

        Raises:
            ApiError: 503, where too many bodies of the owner wait already.
        """
        await self._budget.reserve(self, size)

    async def grow(self, size: int) -> None:
        """Hold `size` bytes more. Raises ApiError 503 where there is no room, and none becomes free for a while."""
        await self._budget.hold(self, size)

    def complete(self) -> None:
        """Give back what was reserved beyond the bytes that are held: the body has been read."""
        self._budget.shrink(self)

    def release(self) -> None:
        """Give back everything; the first call counts."""
        if not self._released:
            self._released = True
            self._budget.give_back(self)


@dataclass(slots=True, eq=False)
class _Waiting:
    """reserves: the bytes are of the owner's share; else of the budget."""

    lease: BodyLease
    size: int
    reserves: bool
    granted: asyncio.Future[None]

    @property
    def is_first(self) -> bool:
        """Return whether the body has its turn behind others of its owner: it holds nothing of the share yet."""
        return self.reserves and not self.lease.reserved


class BodyBudget:
    def __init__(
        self,
        most: int,
        share: int,
        longest: int,
        patience: float = _PATIENCE,
        small: int = SMALL_BYTES,
    ):
        """Create an empty budget.

        Args:
            most: Bytes of all bodies.
            share: Bytes of one owner's large bodies, and of its small ones.
            longest: Bytes of one body, at most `share`.
            patience: Seconds that a body which holds bytes waits while no other is released.
            small: Bytes of a body that finds room beside large ones.
        """
        self.most = most
        self._share, self._longest, self._small = share, longest, small
        self._patience = patience
        self._reserved: Counter[str] = Counter()  # by owner, for large bodies
        self._small_held: Counter[str] = Counter()  # by owner, by small bodies
        self._waiting: list[_Waiting] = []
        self._releases = 0
        self.held = 0

    def lease(self, owner: str) -> BodyLease:
        return BodyLease(self, owner)

    async def reserve(self, lease: BodyLease, size: int | None) -> None:
        whole = min(self._longest, UNKNOWN_BYTES) if size is None else size
        if whole <= max(self._small, lease.reserved):
            return
        # One that holds a part of the share must not wait without end for another part.
        await self._claim(
            lease, whole - lease.reserved, reserves=True, patience=self._patience if lease.reserved else None
        )

    async def hold(self, lease: BodyLease, size: int) -> None:
        await self.reserve(lease, lease.held + size)
        await self._claim(lease, size, reserves=False, patience=self._patience)

    def shrink(self, lease: BodyLease) -> None:
        if lease.reserved:
            _take_from(self._reserved, lease.owner, lease.reserved - lease.held)
            lease.reserved = lease.held
            self._grant_waiting()

    def give_back(self, lease: BodyLease) -> None:
        self.held -= lease.held
        if lease.reserved:
            _take_from(self._reserved, lease.owner, lease.reserved)
        else:
            _take_from(self._small_held, lease.owner, lease.held)
        lease.held = lease.reserved = 0
        self._releases += 1
        self._grant_waiting()

    async def _claim(self, lease: BodyLease, size: int, *, reserves: bool, patience: float | None) -> None:
        claim = _Waiting(lease, size, reserves, asyncio.get_running_loop().create_future())
        behind = claim.is_first and any(one.is_first and one.lease.owner == lease.owner for one in self._waiting)
        if not behind and self._fits(claim):
            return self._grant(claim)
        of_one = sum(one.lease.owner == lease.owner for one in self._waiting)
        if len(self._waiting) >= _MAX_WAITING or of_one >= _MAX_WAITING_OF_ONE:
            raise self._crowded(of_one)
        self._waiting.append(claim)
        try:
            while not claim.granted.done():
                releases = self._releases
                await asyncio.wait((claim.granted,), timeout=patience)
                if not claim.granted.done() and self._releases == releases:
                    raise self._full(claim)
        finally:
            if not claim.granted.done():
                self._waiting.remove(claim)

    def _grant_waiting(self) -> None:
        """In the order of coming: an owner's large bodies each in turn, others where there is room for them."""
        behind: set[str] = set()
        for claim in tuple(self._waiting):
            owner = claim.lease.owner
            if claim.is_first and owner in behind:
                continue
            if self._fits(claim):
                self._waiting.remove(claim)
                self._grant(claim)
            elif claim.is_first:
                behind.add(owner)

    def _fits(self, claim: _Waiting) -> bool:
        lease, size = claim.lease, claim.size
        if claim.reserves:
            return self._reserved[lease.owner] + size <= self._share
        # Large bodies of a few owners may fill the budget; small ones, of nearly all requests, find room beside it.
        beside = SMALL_ROOM_BYTES if lease.held + size <= self._small else 0
        of_owner = lease.reserved > 0 or self._small_held[lease.owner] + size <= self._share
        return of_owner and self.held + size <= self.most + beside

    def _grant(self, claim: _Waiting) -> None:
        lease, size = claim.lease, claim.size
        if claim.reserves:
            if not lease.reserved:
                _take_from(self._small_held, lease.owner, lease.held)
            lease.reserved += size
            self._reserved[lease.owner] += size
        else:
            lease.held += size
            self.held += size
            if not lease.reserved:
                self._small_held[lease.owner] += size
        if not claim.granted.done():
            claim.granted.set_result(None)

    def _crowded(self, of_one: int) -> ApiError:
        if of_one >= _MAX_WAITING_OF_ONE:
            bodies = counted(of_one, "body of your requests waits", "bodies of your requests wait")
            return self._refusal(f"{bodies} for memory, and {_MAX_WAITING_OF_ONE} may")
        return self._refusal(f"{len(self._waiting)} bodies wait for memory, and {_MAX_WAITING} may (--body-budget-mb)")

    def _full(self, claim: _Waiting) -> ApiError:
        owner = claim.lease.owner
        if not claim.reserves and self.held + claim.size > self.most:
            return self._refusal(
                f"Bodies of {self.held:,} bytes are in memory, of at most {self.most:,} (--body-budget-mb)"
            )
        held = self._reserved[owner] if claim.reserves else self._small_held[owner]
        return self._refusal(f"Your requests have bodies of {held:,} bytes in memory, of at most {self._share:,}")

    def _refusal(self, why: str) -> ApiError:
        return ApiError(
            503,
            f"{why}; try again in {self._patience:g} s, with fewer at once.",
            type="server_error",
            code="body_budget",
            retry_after=self._patience,
        )


def _take_from(counts: Counter[str], owner: str, size: int) -> None:
    counts[owner] -= size
    if not counts[owner]:
        del counts[owner]
