"""The table of turns: the accounts in memory that processes share, a lock around them, and a pipe to wake each by.

Knows descriptors, which a supervisor makes and its workers inherit; not when a turn is taken. All of it is the
kernel's to clean up: memory without a name, a lock that falls when its holder dies, and a mark of the same kind by
which others see that the process at a place lives (a process id would be some other process's by and by, and that of a
child whom nobody has waited for looks alive). Locks are a process's: one table, one place and one thread in each.
"""

from __future__ import annotations

import contextlib
import fcntl
import mmap
import os
import select
import sys
import tempfile
from dataclasses import dataclass
from types import TracebackType

from inflight.engine.turns.accounts import Accounts
from inflight.engine.turns.cells import Cells

_MUTEX_BYTE, _FIRST_MARK_BYTE = 0, 1  # of the file; its content has nothing to do with it
_NUMBER_BYTES = 8


@dataclass(frozen=True, slots=True)
class TurnDescriptors:
    """What a worker is told, and inherits. readers, writers: of each place's pipe."""

    table: int
    readers: tuple[int, ...]
    writers: tuple[int, ...]

    @property
    def all(self) -> tuple[int, ...]:
        """For `pass_fds`."""
        return (self.table, *self.readers, *self.writers)


class TurnTable:
    """Entered, nobody else reads or writes the accounts."""

    def __init__(self, descriptors: TurnDescriptors):
        self.descriptors = descriptors
        places = len(descriptors.readers)
        size = Cells.numbers(places) * _NUMBER_BYTES
        os.ftruncate(descriptors.table, size)
        self._memory = mmap.mmap(descriptors.table, size)
        self._numbers = memoryview(self._memory).cast("d")
        self.accounts = Accounts(Cells(self._numbers))
        self._mine: int | None = None
        self._poll = select.poll()

    @classmethod
    def create(cls, places: int, floor: float = 0.01) -> TurnTable:
        """On the supervisor's side. places: most processes at a time. floor: share of the time for those who are not
        urgent, while others would take all of it. Raises ValueError for what is no such share."""
        pipes = [os.pipe() for _ in range(places)]
        for reader, writer in pipes:
            os.set_blocking(reader, False)
            os.set_blocking(writer, False)
        readers, writers = tuple(one[0] for one in pipes), tuple(one[1] for one in pipes)
        table = cls(TurnDescriptors(_shared_memory(), readers, writers))
        try:
            table.accounts.set_floor(floor)
        except ValueError:
            table.close()
            raise
        return table

    def __enter__(self) -> Accounts:
        fcntl.lockf(self.descriptors.table, fcntl.LOCK_EX, 1, _MUTEX_BYTE)
        return self.accounts

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        fcntl.lockf(self.descriptors.table, fcntl.LOCK_UN, 1, _MUTEX_BYTE)

    def attach(self, place: int, weight: float, now: float) -> None:
        """This process is there from now on. Raises ValueError for a weight that is none, and for a place that another
        process has."""
        with self as accounts:
            if not self._lock_mark(place):
                raise ValueError(f"Place {place} is taken by a process that lives; give another.")
            self._mine = place
            accounts.attach(place, weight)
            following = accounts.pass_turn(now)
            self._poll.register(self.descriptors.readers[place], select.POLLIN)
        self.wake(following)

    def detach(self, now: float) -> None:
        """This process is there no more."""
        if self._mine is not None:
            self._poll.unregister(self.descriptors.readers[self._mine])
            self.clear(self._mine, now)
            self._unlock_mark(self._mine)
            self._mine = None

    def clear(self, place: int, now: float) -> None:
        """The process that was there is gone, or about to be; called before another one may come there."""
        with self as accounts:
            accounts.clear(place)
            following = accounts.pass_turn(now)
        self.wake(following)

    def is_alive(self, place: int) -> bool:
        """Whether the process there is. Asked by one that has entered the table."""
        if place == self._mine:
            return True  # asked for, the mark would be given to whoever has it
        if self._lock_mark(place):
            self._unlock_mark(place)
            return False
        return True

    def wake(self, place: int | None) -> None:
        if place is not None and place != self._mine:
            with contextlib.suppress(BlockingIOError):  # it has not looked since it was woken thousands of times
                os.write(self.descriptors.writers[place], b"\0")

    def wait(self, seconds: float) -> None:
        """Until this process is woken, or for so long."""
        assert self._mine is not None, "asked by a process that has a place"
        if self._poll.poll(max(0.0, seconds) * 1000):
            os.read(self.descriptors.readers[self._mine], 4096)

    def close(self) -> None:
        """This process has the memory and the descriptors no more."""
        self._numbers.release()
        self._memory.close()
        for one in self.descriptors.all:
            os.close(one)

    def _lock_mark(self, place: int) -> bool:
        """Whether this process has it now."""
        try:
            fcntl.lockf(self.descriptors.table, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, _FIRST_MARK_BYTE + place)
        except (BlockingIOError, PermissionError):
            return False
        return True

    def _unlock_mark(self, place: int) -> None:
        fcntl.lockf(self.descriptors.table, fcntl.LOCK_UN, 1, _FIRST_MARK_BYTE + place)


def _shared_memory() -> int:
    if sys.platform == "linux":
        return os.memfd_create("inflight-turns")
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())
