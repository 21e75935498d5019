"""Private copies of an engine's blocks, for threads that may hang: they touch the blocks only while a transfer has
them.

Once a transfer was released, nothing is read from its blocks or written to them any more, whatever its thread still
does.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence


class Released(RuntimeError):
    """The transfer was released: it made no progress for too long."""


class BlockCopies:
    def __init__(self, views: Sequence[memoryview]):
        """Copy to or from views of the transfer's blocks."""
        self._views = views
        self._lock = threading.Lock()
        self._is_released = False
        self.touched = 0.0  # when something came of them, on the monotonic clock; 0: no thread has begun

    def __len__(self) -> int:
        return len(self._views)

    def nbytes(self, at: int) -> int:
        """Return the bytes of one of them."""
        return len(self._views[at])

    def take(self) -> list[memoryview]:
        """Copy the blocks' contents. Raises Released."""
        self.touch()
        with self._lock:
            self._check()
            return [memoryview(bytes(view)) for view in self._views]

    def put(self, at: int, content: memoryview) -> None:
        """Fill one of them. Raises Released."""
        with self._lock:
            self._check()
            self._views[at][:] = content
        self.touch()

    def touch(self) -> None:
        """Note that a thread has begun with the blocks, or made progress."""
        self.touched = time.monotonic()

    def release(self) -> None:
        with self._lock:
            self._is_released = True

    def _check(self) -> None:
        if self._is_released:
            raise Released("the transfer was abandoned")
