"""How blocks travel once a connection stands: one interface for all ways.

A way has two ends. The sender gets the blocks that are there, or which bytes of them, in the order in which they were
asked for; the receiver is handed each `Blocks` message, and puts them into blocks of its own. Knows neither exports nor
transfers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from inflight.execution.kv.transfer.wire import Blocks, Copied

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
        """Cut into runs of so many blocks at most."""
        for first in range(0, len(self.blocks), most):
            yield self.some(first, most)

    def message(self, at: list[int] | None = None) -> Blocks:
        return Blocks(len(self.blocks), at or [], self.first, self.start, self.end)


class Sender(Protocol):
    def send(self, run: Run) -> None:
        """Send a run of blocks. Raises PeerError."""

    def copied(self, message: Copied) -> None:
        """Note the receiver's message that it has copied blocks."""

    def close(self) -> None: ...


class Receiver(Protocol):
    def receive(self, message: Blocks, into: Sequence[int]) -> None:
        """Receive the announced blocks into as many of this side's; afterwards, or after an error, they are not touched
        any more. Raises PeerError."""

    def close(self) -> None: ...
