"""Transfers of blocks that every rank does for itself, and which of them have ended on all.

Knows transfers and ranks; not how ranks report them.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass

from inflight.core.types.plan import Transfer, Transferred


@dataclass(slots=True)
class _UnderWay:
    begun: float
    ranks: set[int]  # that have not reported its end
    error: str | None = None


class RankTransfers:
    def __init__(self, ranks: int) -> None:
        self._ranks = ranks
        self._under_way: dict[int, _UnderWay] = {}

    def __bool__(self) -> bool:
        """Return whether any transfer is in flight."""
        return bool(self._under_way)

    def begin(self, transfers: Iterable[Transfer]) -> None:
        for one in transfers:
            self._under_way[one.transfer_id] = _UnderWay(time.monotonic(), set(range(self._ranks)))

    def add_ended(self, rank: int, ended: Iterable[Transferred]) -> None:
        """Add a rank's ended transfers. One that failed on a rank has failed: its blocks hold something else there."""
        for one in ended:
            state = self._under_way[one.transfer_id]
            state.ranks.discard(rank)
            if one.error is not None:
                state.error = state.error or f"On rank {rank}: {one.error}"

    def ended(self) -> tuple[Transferred, ...]:
        """On all ranks, since the last call."""
        ended = tuple(
            Transferred(transfer_id, one.error) for transfer_id, one in self._under_way.items() if not one.ranks
        )
        for one in ended:
            del self._under_way[one.transfer_id]
        return ended

    def overdue(self, seconds: float) -> set[int]:
        """Ranks that have not ended what was begun more than so many seconds ago."""
        since = time.monotonic() - seconds
        return {rank for one in self._under_way.values() if one.begun < since for rank in one.ranks}
