"""The waiting queue: sequences without a row, in the order of their policy.

Knows ranks and nothing of memory or plans. Samples of one prompt wait apart until the first of them has its prompt
computed, so that they find its blocks instead of computing the prompt again.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable

from inflight.core.policies import Policy, Rank
from inflight.core.sequence import Sequence, SequenceView


class WaitingQueue:
    def __init__(self, policy: Policy):
        self._policy = policy
        self._heap: list[tuple[Rank, int, Sequence]] = []
        self._inside: set[int] = set()  # numbers; heap entries of others are stale and skipped
        self._held: dict[int, list[Sequence]] = {}  # first sample's number → its siblings

    def __len__(self) -> int:
        return len(self._inside) + sum(len(siblings) for siblings in self._held.values())

    def rank(self, sequence: Sequence) -> tuple[Rank, int]:
        """The total order of waiting and running sequences."""
        return self._policy.rank(SequenceView(sequence)), sequence.number

    def views(self) -> list[SequenceView]:
        """Everyone who may be served, in order."""
        return [SequenceView(entry[2]) for entry in sorted(self._heap) if entry[1] in self._inside]

    def push(self, sequence: Sequence) -> None:
        heapq.heappush(self._heap, (*self.rank(sequence), sequence))
        self._inside.add(sequence.number)

    def peek(self) -> Sequence | None:
        while self._heap and self._heap[0][1] not in self._inside:
            heapq.heappop(self._heap)
        return self._heap[0][2] if self._heap else None

    def select(self, numbers: Iterable[int]) -> list[Sequence]:
        """The waiting sequences with these numbers, in that order; numbers that do not wait are passed over."""
        found = {entry[1]: entry[2] for entry in self._heap if entry[1] in self._inside}
        return [found[number] for number in numbers if number in found]

    def take(self, sequence: Sequence) -> None:
        """It is served: it waits no longer, its siblings still wait for it."""
        self._inside.remove(sequence.number)

    def siblings(self, leader: Sequence) -> list[Sequence]:
        """Those that wait for the leader's prompt."""
        return self._held.get(leader.number, [])

    def remove(self, sequence: Sequence) -> None:
        """Take out a sequence wherever it waits; harmless if it does not."""
        self._inside.discard(sequence.number)
        self._held.pop(sequence.number, None)

    def hold(self, leader: Sequence, siblings: Iterable[Sequence]) -> None:
        self._held[leader.number] = list(siblings)

    def let_go(self, leader: Sequence) -> None:
        """The leader's prompt is computed (or planned): its siblings may be served."""
        for sibling in self._held.pop(leader.number, ()):
            self.push(sibling)
