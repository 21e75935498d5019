"""How many calls are in flight, by tenant: in this process, and in all that share a table; and whether all are ready.

In the table, which has no name in any file system, each process writes the cells of its own
place alone, so that none needs a lock, and what a process that was killed has left can be taken out.
"""

from __future__ import annotations

import mmap
import os
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence

from inflight.counted import counted
from inflight.server.tenants import KeysError

_CELL_BYTES = 4
_HEAD_CELLS = 1  # before the others: 1 once all processes are ready
SPARE_TENANTS = 64  # that may come while the server runs


class CallCounts:
    """Calls of a server that is one process."""

    def __init__(self) -> None:
        self._mine: Counter[str] = Counter()

    @property
    def all_ready(self) -> bool:
        """Return whether all processes that share the table have been ready at the same time."""
        return True

    @property
    def mine(self) -> int:
        return self._mine.total()

    @property
    def everywhere(self) -> int:
        """Return the calls of all processes."""
        return self.mine

    def of(self, tenant: str) -> int:
        """Return the calls of that tenant, of all processes."""
        return self._mine[tenant]

    def enter(self, tenant: str) -> None:
        self._mine[tenant] += 1

    def leave(self, tenant: str) -> None:
        self._mine[tenant] -= 1
        if not self._mine[tenant]:
            del self._mine[tenant]


class SharedCallCounts(CallCounts):
    """Calls of all processes. A call is counted before the sum is read: of two at once none is overlooked."""

    def __init__(self, table: int, names: Sequence[str], places: int, place: int | None = None):
        """table: its descriptor, see `shared_memory`; the first process makes its size. names: all tenants', in the
        order in which all processes have them. place: this process's; None: it only looks on."""
        super().__init__()
        if not os.fstat(table).st_size:
            os.ftruncate(table, (_HEAD_CELLS + (len(names) + SPARE_TENANTS) * places) * _CELL_BYTES)
        size = os.fstat(table).st_size
        self._width = (size // _CELL_BYTES - _HEAD_CELLS) // places
        table_cells = memoryview(mmap.mmap(table, size)).cast("i")
        self._head, self._cells = table_cells[:_HEAD_CELLS], table_cells[_HEAD_CELLS:]
        self._columns: dict[str, int] = {}
        self.add(names)
        self._place = place

    @property
    def names(self) -> tuple[str, ...]:
        """All tenants that have been counted, in the order of their cells."""
        return tuple(self._columns)

    def add(self, names: Sequence[str]) -> None:
        """Count tenants that are new, too. Raises KeysError where there are too many."""
        new = [name for name in names if name not in self._columns]
        if len(self._columns) + len(new) > self._width:
            most = self._width - len(self._columns)
            raise KeysError(
                f"{counted(len(new), 'new tenant')}, and at most {most} more can be added without a restart; restart "
                "the server."
            )
        for name in new:
            self._columns[name] = len(self._columns)

    @property
    def all_ready(self) -> bool:
        return bool(self._head[0])

    def set_all_ready(self, are_ready: bool = True) -> None:
        """Let all processes take calls from now on, or none."""
        self._head[0] = are_ready

    @property
    def everywhere(self) -> int:
        return sum(self._cells)

    def of(self, tenant: str) -> int:
        return sum(self._cells[self._columns[tenant] :: self._width])

    def enter(self, tenant: str) -> None:
        super().enter(tenant)
        self._write(tenant)

    def leave(self, tenant: str) -> None:
        super().leave(tenant)
        self._write(tenant)

    def clear(self, place: int) -> int:
        """Remove the calls of a process that has ended; return how many it had."""
        width = self._width
        cells = self._cells[place * width : (place + 1) * width]
        left = sum(cells)
        for column in range(width):
            cells[column] = 0
        return left

    def _write(self, tenant: str) -> None:
        assert self._place is not None, "an onlooker has no calls"
        self._cells[self._place * self._width + self._columns[tenant]] = self._mine[tenant]


def shared_memory() -> int:
    """Return a descriptor of memory, which processes share that have inherited it."""
    if sys.platform == "linux":
        return os.memfd_create("inflight-server")
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())
