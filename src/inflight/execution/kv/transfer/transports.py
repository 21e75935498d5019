"""Transports of blocks over an open connection: their interface, and the connection's own stream.

By the stream, bytes go from a block's memory to the socket, and from there into a block, without a copy in between.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from inflight.execution.kv.block_memory import BlockMemory
from inflight.execution.kv.transfer.wire import PROGRESS, Blocks, Channel

STREAM = "stream"
_MAX_BYTES = 8 << 20  # behind a message; takes far less than PROGRESS on any usable link


@dataclass(frozen=True, slots=True)
class Run:
    """Consecutive blocks of a pull, all of one memory.

    Attributes:
        memory: Of the blocks at this side.
        blocks: Their numbers there.
        first: Index of the first in the pull.
        start: First byte of each block.
        end: Byte behind the last of each block.
    """

    memory: BlockMemory
    blocks: Sequence[int]
    first: int
    start: int
    end: int

    @property
    def part_bytes(self) -> int:
        """Bytes of each block."""
        return self.end - self.start

    def views(self) -> list[memoryview]:
        return self.memory.views(self.blocks, self.start, self.end)

    def message(self, at: list[int] | None = None) -> Blocks:
        return Blocks(len(self.blocks), self.first, self.start, self.end, at or [])

    def cut(self, max_bytes: int) -> Iterator[Run]:
        """Cut into runs of so many bytes at most: of several blocks, or of a part of one."""
        step = max_bytes // self.part_bytes
        for index in range(0, len(self.blocks), max(1, step)):
            blocks, first = self.blocks[index : index + max(1, step)], self.first + index
            for start in range(self.start, self.end, self.part_bytes if step else max_bytes):
                yield Run(self.memory, blocks, first, start, self.end if step else min(self.end, start + max_bytes))


class Sender(Protocol):
    def send(self, run: Run) -> None:
        """Send blocks of a pull. Raises PeerError."""


class Receiver(Protocol):
    def receive(self, run: Run, at: Sequence[int]) -> None:
        """Receive blocks that a message announced. Afterwards, or after an error, they are not written any more.

        Args:
            run: Blocks of this side.
            at: Numbers of the blocks at the server, from the message.

        Raises:
            PeerError: The peer is gone, too slow, or sent invalid numbers.
        """

    def close(self) -> None: ...


class StreamSender:
    def __init__(self, channel: Channel):
        self._channel = channel

    def send(self, run: Run) -> None:
        for part in run.cut(_MAX_BYTES):
            self._channel.send(part.message(), PROGRESS, part.views())


class StreamReceiver:
    def __init__(self, channel: Channel):
        self._channel = channel

    def receive(self, run: Run, at: Sequence[int]) -> None:
        self._channel.receive_bytes(run.views(), PROGRESS)

    def close(self) -> None:
        pass
