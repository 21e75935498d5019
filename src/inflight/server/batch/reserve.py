"""The reserve: room on the disk that is held back, so that on a full disk something can still be deleted.

To delete a file takes a transaction, and a transaction takes room. The reserve is a file that has its blocks already;
it gives them up when the disk is full, and takes back what it can get, since the next deletion needs it too.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from inflight.server.batch.faults import DamagedDatabase

T = TypeVar("T")

BYTES = 4 << 20
_STEP_BYTES = 256 << 10  # taken at once: what there is not room for as a whole is taken in part
_HEAD = b"Room that the server gives up when the disk is full, so that files can be deleted.\n"
_OPEN = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW


class Reserve:
    def __init__(self, path: Path):
        self.path = path

    @property
    def is_whole(self) -> bool:
        """By its blocks alone, so that it costs nothing to ask."""
        try:
            return os.lstat(self.path).st_blocks * 512 >= BYTES
        except OSError:
            return False

    def is_foreign(self) -> bool:
        """Something else stands in its place: what it holds is not what a reserve holds. Raises OSError."""
        try:
            descriptor = os.open(self.path, _OPEN)
        except FileNotFoundError:
            return False
        except OSError:  # a link, a folder
            return True
        with open(descriptor, "rb") as file:
            content = file.read(BYTES + 1)
        return len(content) > BYTES or not (_HEAD + bytes(max(0, len(content) - len(_HEAD)))).startswith(content)

    def relieving(self, work: Callable[[], T]) -> T:
        """`work`; where the disk refuses it, once more without the reserve. Raises what `work` raises.

        Whatever the disk says: of a full one SQLite often says no more than "I/O error".
        """
        try:
            return work()
        except DamagedDatabase:
            raise
        except OSError:
            self.give_up()
        return work()

    def give_up(self) -> None:
        """Its blocks are free on return. Raises OSError."""
        if self.is_foreign():
            return
        with contextlib.suppress(FileNotFoundError):
            os.truncate(self.path, min(len(_HEAD), self.path.stat().st_size))

    def restore(self) -> bool:
        """Whether it is whole again. Where there is not room for all of it, it holds what there is."""
        if self.is_whole:
            return True
        try:
            if self.is_foreign():
                return False
            with open(os.open(self.path, _OPEN | os.O_CREAT, 0o600), "r+b", buffering=0) as file:
                file.write(_HEAD)
                for start in range(0, BYTES, _STEP_BYTES):
                    os.posix_fallocate(file.fileno(), start, _STEP_BYTES)
        except OSError:
            return False
        return True
