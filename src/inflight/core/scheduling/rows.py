"""Rows: the places of running sequences in the executor. Knows which are free and which were given up lately."""

from __future__ import annotations


class Rows:
    def __init__(self, count: int):
        self._free = list(range(count - 1, -1, -1))
        self._freed: list[int] = []

    @property
    def free(self) -> int:
        return len(self._free)

    def take(self) -> int:
        return self._free.pop()

    def give_up(self, row: int) -> None:
        self._free.append(row)
        self._freed.append(row)

    def drain_freed(self) -> tuple[int, ...]:
        """Rows given up since the last plan."""
        freed, self._freed = tuple(self._freed), []
        return freed
