"""Private copies of an engine's blocks, for threads that may hang: they touch the blocks only while a transfer has
them.

Once a transfer was given up, nothing is read from its blocks or written to them any more, whatever its thread still
does.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence


class GivenUp(RuntimeError):
    """The transfer was given up: nothing came of it for too long."""


class BlockCopies:
    def __init__(self, views: Sequence[memoryview]):
        """Of the transfer's blocks."""
        self._views = views
        self._lock = threading.Lock()
        self._given_up = False
        self.touched = 0.0  # when something came of them, on the monotonic clock; 0: no thread has begun

    def __len__(self) -> int:
        return len(self._views)

    def take(self) -> list[memoryview]:
        """What is in them. Raises GivenUp."""
        self.touch()
        with self._lock:
            self._check()
            return [memoryview(bytes(view)) for view in self._views]

    def put(self, at: int, content: memoryview) -> None:
        """Fill one of them. Raises GivenUp."""
        with self._lock:
            self._check()
            self._views[at][:] = content
        self.touch()

    def touch(self) -> None:
        """A thread has begun with them, or something came of them."""
        self.touched = time.monotonic()

    def give_up(self) -> None:
        with self._lock:
            self._given_up = True

    def _check(self) -> None:
        if self._given_up:
            raise GivenUp("the transfer was given up")
