"""How blocks travel once a connection stands: one interface for all ways.

A way has two ends. The sender is told which blocks are there, or which bytes of them, in the order in which they were
asked for; the receiver is handed each `Blocks` message, and puts them into blocks of its own. Knows neither exports nor
transfers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from inflight.execution.kv_exchange.wire import Blocks, Copied

PROGRESS = 10.0  # seconds in which some of what is on its way has come; else the peer is lost


@dataclass(frozen=True, slots=True)
class Run:
    """Blocks, which were asked for from number `first` on, and the bytes of each from `start` to `end`."""

    blocks: Sequence[int]
    first: int
    start: int
    end: int

    @property
    def part(self) -> int:
        """Bytes of a block."""
        return self.end - self.start

    def some(self, first: int, count: int) -> Run:
        return Run(self.blocks[first : first + count], self.first + first, self.start, self.end)

    def cut(self, most: int) -> Iterator[Run]:
        """Of so many blocks at most."""
        for first in range(0, len(self.blocks), most):
            yield self.some(first, most)

    def told(self, at: list[int] | None = None) -> Blocks:
        return Blocks(len(self.blocks), at or [], self.first, self.start, self.end)


class Sender(Protocol):
    def send(self, run: Run) -> None:
        """Raises PeerError."""

    def copied(self, message: Copied) -> None:
        """The receiver has said so."""

    def close(self) -> None: ...


class Receiver(Protocol):
    def receive(self, message: Blocks, into: Sequence[int]) -> None:
        """What the message tells of, into as many blocks; when it returns, or raises, nothing touches them any more.
        Raises PeerError."""

    def close(self) -> None: ...
