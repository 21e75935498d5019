"""A stream of copies on the CPU that does nothing before a caller waits for it, or has asked often enough: whatever is
used too early, or overwritten before it is copied, is seen."""

from __future__ import annotations

import threading
from collections import deque

from torch import Tensor


class DelayedStream:
    def __init__(self, patience: int = 0) -> None:
        """patience: queries of an event at which it has come; 0: it comes for those alone who wait."""
        self.patience = patience
        self.waiting: deque[tuple[Tensor, Tensor]] = deque()
        self.copies = self.done = 0
        self.calls: list[str] = []
        self._lock = threading.Lock()

    def copy(self, target: Tensor, source: Tensor) -> None:
        self.waiting.append((target, source))
        self.copies += 1

    def mark(self) -> DelayedEvent:
        return DelayedEvent(self, self.copies)

    def follow_steps(self) -> None:
        self.calls.append("follow")

    def hold_steps(self) -> None:
        self.calls.append("hold")
        self.run(self.copies)

    def run(self, upto: int) -> None:
        with self._lock:
            while self.done < upto:
                target, source = self.waiting.popleft()
                target.copy_(source)
                self.done += 1


class DelayedEvent:
    def __init__(self, stream: DelayedStream, place: int) -> None:
        self._stream, self._place, self._queries = stream, place, 0

    def query(self) -> bool:
        self._queries += 1
        if self._queries == self._stream.patience:
            self.synchronize()
        return self._stream.done >= self._place

    def synchronize(self) -> None:
        self._stream.run(self._place)
