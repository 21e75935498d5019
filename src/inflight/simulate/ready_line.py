"""Replicas by when their next steps begin. Knows times; not what replicas do."""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence

from inflight.simulate.replica import Replica


class ReadyLine:
    """A heap whose entries are replaced, not changed: of each replica the last one counts."""

    def __init__(self, replicas: Sequence[Replica]):
        self._places: dict[int, int] = {}
        self._heap: list[tuple[float, int, int, Replica]] = []
        self._last: list[int] = []  # number of each one's entry that counts
        for one in replicas:
            self.join(one)

    def join(self, replica: Replica) -> None:
        """It has nothing to do yet."""
        self._places[id(replica)] = len(self._last)
        self._last.append(0)

    def changed(self, replica: Replica) -> None:
        """When it is ready may be another time now."""
        place, ready = self._places[id(replica)], replica.ready
        self._last[place] += 1
        if ready is not None:
            heapq.heappush(self._heap, (ready, place, self._last[place], replica))

    def next_time(self) -> float:
        """When the first one is ready; infinite where none has work."""
        heap, last = self._heap, self._last
        while heap and heap[0][2] != last[heap[0][1]]:
            heapq.heappop(heap)
        return heap[0][0] if heap else math.inf

    def take(self) -> Replica:
        """Out of the line, until it is `changed`: the first one of those that `next_time` is of."""
        return heapq.heappop(self._heap)[3]
