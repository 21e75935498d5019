"""The reserve: room on the disk that is held back, so that on a full disk something can still be deleted.

To delete a file takes a transaction, and a transaction takes room. The reserve is a file that has its blocks already;
it gives them up when the disk is full, and takes them back when there is room.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

BYTES = 4 << 20
_HEAD = b"Room that the server gives up when the disk is full, so that files can be deleted.\n"
_OPEN = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW


class Reserve:
    def __init__(self, path: Path):
        self.path = path

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

    def give_up(self) -> None:
        """Its blocks are free on return. Raises OSError."""
        if self.is_foreign():
            return
        with contextlib.suppress(FileNotFoundError):
            os.truncate(self.path, min(len(_HEAD), self.path.stat().st_size))

    def restore(self) -> bool:
        """Whether it is whole again. Takes nothing where there is not room for all of it."""
        try:
            if self.is_foreign():
                return False
            descriptor = os.open(self.path, _OPEN | os.O_CREAT, 0o600)
        except OSError:
            return False
        try:
            if os.fstat(descriptor).st_blocks * 512 < BYTES:
                os.pwrite(descriptor, _HEAD, 0)
                os.posix_fallocate(descriptor, 0, BYTES)
        except OSError:
            with contextlib.suppress(OSError):
                os.ftruncate(descriptor, min(len(_HEAD), os.fstat(descriptor).st_size))
            return False
        finally:
            os.close(descriptor)
        return True
