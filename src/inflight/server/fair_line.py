"""A line in which next is the owner that has used least: start-time fair queueing (Goyal et al., SIGCOMM 1996).

Each owner's entries keep their order. Newcomers are lifted to those at work, so that idle time is not banked. What an
entry costs may be known only afterwards: it is charged then. Knows owners' names and seconds; nothing of what waits.
"""

from __future__ import annotations

import heapq
import itertools
from collections import deque
from typing import Generic, Protocol, TypeVar

_MOST_KNOWN = 4096  # owners whose use is remembered while they ask for nothing


class Entry(Protocol):
    @property
    def owner(self) -> str: ...

    @property
    def is_over(self) -> bool:
        """Whether nobody waits for it any more."""


T = TypeVar("T", bound=Entry)


class FairLine(Generic[T]):
    def __init__(self) -> None:
        self.used = 0.0  # seconds, of all owners
        self._waiting: dict[str, deque[T]] = {}
        self._order: list[tuple[float, int, str]] = []  # what an owner has used, a ticket, the owner
        self._tickets = itertools.count()
        self._used: dict[str, float] = {}
        self._least = 0.0  # to which newcomers are lifted: the most that an owner had used when it had a turn

    def __bool__(self) -> bool:
        return bool(self._order)

    def put(self, entry: T) -> None:
        owner = entry.owner
        queue = self._waiting.get(owner)
        if queue is None:
            queue = self._waiting[owner] = deque()
            self._used[owner] = max(self._used.get(owner, 0.0), self._least)
            self._line_up(owner)
        queue.append(entry)

    def next(self) -> T | None:
        """Of those that still wait; it stays where it is."""
        while self._order:
            used, _, owner = self._order[0]
            queue = self._waiting[owner]
            if queue[0].is_over:
                self._leave()
            elif used < self._used[owner]:  # its last entry cost more than was expected
                heapq.heappop(self._order)
                self._line_up(owner)
            else:
                return queue[0]
        return None

    def take(self, seconds: float) -> None:
        """The next one goes, and is expected to cost so much."""
        used, _, owner = self._order[0]
        self._least = max(self._least, used)
        self.charge(owner, seconds)
        self._leave()

    def charge(self, owner: str, seconds: float) -> None:
        self.used += seconds
        if owner in self._used:
            self._used[owner] += seconds

    def empty(self) -> list[T]:
        """Everyone who waits; nobody does then."""
        left = [entry for queue in self._waiting.values() for entry in queue]
        self._waiting.clear()
        self._order.clear()
        return left

    def _line_up(self, owner: str) -> None:
        heapq.heappush(self._order, (self._used[owner], next(self._tickets), owner))

    def _leave(self) -> None:
        """The next one waits no more."""
        _, _, owner = heapq.heappop(self._order)
        queue = self._waiting[owner]
        queue.popleft()
        if queue:
            self._line_up(owner)
            return
        del self._waiting[owner]
        if len(self._used) > _MOST_KNOWN + len(self._waiting):
            self._forget()

    def _forget(self) -> None:
        """What owners have used that would be lifted anyway; else of half of them."""
        idle = [owner for owner in self._used if owner not in self._waiting]
        lifted = [owner for owner in idle if self._used[owner] <= self._least]
        for owner in lifted or idle[: len(idle) // 2]:
            del self._used[owner]
