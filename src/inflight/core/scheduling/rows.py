"""Rows: the places of running sequences in the executor. Knows which are free and which were given up lately."""

from __future__ import annotations

from collections.abc import Iterable


class Rows:
    def __init__(self, count: int):
        self._free = list(range(count - 1, -1, -1))
        self._freed: list[int] = []

    @property
    def free(self) -> int:
        return len(self._free)

    def take(self) -> int:
        return self._free.pop()

    def give_up(self, row: int, started: bool) -> None:
        """started: the executor was told of it."""
        self._free.append(row)
        if started:
            self._freed.append(row)

    def free_again(self, rows: Iterable[int]) -> None:
        """Tell once more of these that they were given up, but for those that were taken again."""
        self._freed += [row for row in rows if row in self._free and row not in self._freed]

    def drain_freed(self) -> tuple[int, ...]:
        """Rows given up since the last plan."""
        freed, self._freed = tuple(self._freed), []
        return freed
