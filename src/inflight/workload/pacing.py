"""Who is due now: open loop, closed loop, both, and turns of a conversation that wait for the answer before them.

Sans-IO: times are arguments, in seconds after the workload's beginning; a load client, an offline run and a simulation
drive it alike.
"""

from __future__ import annotations

import heapq
import math
from collections import deque

from inflight.workload.workload import Workload


class Pacer:
    def __init__(self, workload: Workload):
        self._entries = workload.entries
        self._closed = workload.closed
        self._until = math.inf if workload.until is None else workload.until
        self._bounded = workload.concurrency is not None
        self._places = deque([0.0] * (workload.concurrency or 0))  # free ones: since when, the longest free first
        self._followers: dict[int, list[int]] = {}
        self._coming: list[tuple[float, int]] = []  # heap of (time, index): whose time is known
        for index, entry in enumerate(workload.entries):
            if entry.after is None:
                self._coming.append((entry.arrival, index))
            else:
                self._followers.setdefault(entry.after, []).append(index)
        heapq.heapify(self._coming)
        self._left = len(workload.entries)  # not ended

    @property
    def done(self) -> bool:
        return not self._left

    def next_due(self) -> float | None:
        """When somebody is due if nobody ends before; None: that depends on an end, or nobody is left."""
        return self._coming[0][0] if self._coming and self._has_room else None

    def due(self, now: float) -> list[tuple[int, float]]:
        """(index, intended send time) of all who are due, each told once; they are under way until `ended`.

        In a closed loop the intended time is when both the entry and a place for it were there."""
        if now >= self._until:
            self._close()
        found = []
        while self._coming and self._has_room and self._coming[0][0] <= now:
            time, index = heapq.heappop(self._coming)
            free_since = self._places.popleft() if self._bounded else 0.0
            found.append((index, max(time, free_since) if self._closed else time))
        return found

    def ended(self, index: int, now: float) -> None:
        """Answered, refused or failed. What follows it in its conversation gets its time, and its place is free."""
        self._left -= 1
        if self._bounded:
            self._places.append(now)
        for follower in self._followers.pop(index, ()):
            entry = self._entries[follower]
            heapq.heappush(self._coming, (max(entry.arrival, now + entry.think_s), follower))

    def _close(self) -> None:
        """Who has not begun never will."""
        self._left -= len(self._coming) + sum(map(len, self._followers.values()))
        self._coming.clear()
        self._followers.clear()

    @property
    def _has_room(self) -> bool:
        return not self._bounded or bool(self._places)
