"""Bodies made before they are due, as many as memory allows.

Knows which entries await nothing; not when they are due.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from inflight.bench.client_types import Bodies, Transcript
from inflight.workload.workload import Entry

MAX_BYTES = 64 << 20
MOST_BODIES = 20_000


class BodyPrefetcher:
    """entries: of one process; indexes: their places in the workload that `bodies` knows."""

    def __init__(self, entries: Sequence[Entry], indexes: Sequence[int], bodies: Bodies):
        self._indexes = indexes
        self._bodies = bodies
        self._next: Iterator[int] = iter(place for place, entry in enumerate(entries) if entry.after is None)
        self._made: dict[int, tuple[bytes, Transcript]] = {}
        self._bytes = 0
        self._begun: set[int] = set()  # taken before they were made
        self._all = False

    @property
    def full(self) -> bool:
        """Whether there is nothing to make now."""
        return self._all or self._bytes >= MAX_BYTES or len(self._made) >= MOST_BODIES

    def make_one(self) -> None:
        place = next(self._next, None)
        if place is None:
            self._all = True
        elif place in self._begun:
            self._begun.discard(place)
        else:
            self._made[place] = made = self._bodies.body(self._indexes[place], None)
            self._bytes += len(made[0])

    def take(self, place: int, before: Transcript | None) -> tuple[bytes, Transcript]:
        """The body, and the conversation as it tells it."""
        made = self._made.pop(place, None)
        if made is not None:
            self._bytes -= len(made[0])
            return made
        if before is None:
            self._begun.add(place)
        return self._bodies.body(self._indexes[place], before)
