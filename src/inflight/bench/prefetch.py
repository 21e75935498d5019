"""Make bodies before they are due, as many as memory allows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from inflight.bench.client_types import Bodies, Transcript
from inflight.workload.workload import Entry

MAX_BYTES = 64 << 20
MAX_BODIES = 20_000


class BodyPrefetcher:
    """Bodies of one process. indexes: of its entries in the workload of `bodies`."""

    def __init__(self, entries: Sequence[Entry], indexes: Sequence[int], bodies: Bodies):
        self._indexes = indexes
        self._bodies = bodies
        self._next: Iterator[int] = iter(position for position, entry in enumerate(entries) if entry.after is None)
        self._made: dict[int, tuple[bytes, Transcript]] = {}
        self._bytes = 0
        self._begun: set[int] = set()  # taken before they were made
        self._all = False

    @property
    def full(self) -> bool:
        """Whether no body is to be made now."""
        return self._all or self._bytes >= MAX_BYTES or len(self._made) >= MAX_BODIES

    def make_one(self) -> None:
        position = next(self._next, None)
        if position is None:
            self._all = True
        elif position in self._begun:
            self._begun.discard(position)
        else:
            self._made[position] = made = self._bodies.body(self._indexes[position], None)
            self._bytes += len(made[0])

    def take(self, position: int, before: Transcript | None) -> tuple[bytes, Transcript]:
        """Return the body, and the conversation up to it."""
        made = self._made.pop(position, None)
        if made is not None:
            self._bytes -= len(made[0])
            return made
        if before is None:
            self._begun.add(position)
        return self._bodies.body(self._indexes[position], before)
