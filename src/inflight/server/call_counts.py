"""How many calls are under way, by tenant: in this process, and in all that share a table.

Knows names and numbers. In the table each process writes the cells of its own place alone, so that none needs a lock,
and what a process that was killed has left can be taken out.
"""

from __future__ import annotations

import mmap
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

_CELL_BYTES = 4


class CallCounts:
    """Of a server that is one process."""

    def __init__(self) -> None:
        self._mine: Counter[str] = Counter()

    @property
    def mine(self) -> int:
        """Calls of this process."""
        return self._mine.total()

    @property
    def everywhere(self) -> int:
        """Calls of all processes."""
        return self.mine

    def of(self, tenant: str) -> int:
        """Calls of that tenant, of all processes."""
        return self._mine[tenant]

    def enter(self, tenant: str) -> None:
        self._mine[tenant] += 1

    def leave(self, tenant: str) -> None:
        self._mine[tenant] -= 1
        if not self._mine[tenant]:
            del self._mine[tenant]


class SharedCallCounts(CallCounts):
    """Whoever enters counts himself first and looks then: of two that come at once, neither overlooks the other."""

    def __init__(self, path: Path, names: Sequence[str], places: int, place: int | None = None):
        """path: of the table, made where it is not there. names: all tenants'. place: this process's; None: it only
        looks on."""
        super().__init__()
        size = len(names) * places * _CELL_BYTES
        with open(path, "a+b") as file:
            file.truncate(size)
            self._cells = memoryview(mmap.mmap(file.fileno(), size)).cast("i")
        self._columns = {name: column for column, name in enumerate(names)}
        self._place = place

    @property
    def everywhere(self) -> int:
        return sum(self._cells)

    def of(self, tenant: str) -> int:
        return sum(self._cells[self._columns[tenant] :: len(self._columns)])

    def enter(self, tenant: str) -> None:
        super().enter(tenant)
        self._write(tenant)

    def leave(self, tenant: str) -> None:
        super().leave(tenant)
        self._write(tenant)

    def clear(self, place: int) -> int:
        """The process that was there is gone. How many calls it had."""
        width = len(self._columns)
        cells = self._cells[place * width : (place + 1) * width]
        left = sum(cells)
        for column in range(width):
            cells[column] = 0
        return left

    def _write(self, tenant: str) -> None:
        assert self._place is not None, "an onlooker has no calls"
        self._cells[self._place * len(self._columns) + self._columns[tenant]] = self._mine[tenant]
