"""Blocks through memory that two processes on one host share: places for some blocks, filled and emptied in turn.

The receiver makes the memory and gives its descriptor to the sender, so that it is gone with them, whatever ends them.
Both copy by the system's calls, which check bounds and let the interpreter's other threads go on; memory that a peer
has cut short is an error, not the process's end.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence

from inflight.execution.kv.block_memory import BlockMemory
from inflight.execution.kv.transfer.transports import PROGRESS, Run
from inflight.execution.kv.transfer.wire import Blocks, Channel, Copied, PeerError

NAME = "shared memory"
_BYTES = 16 << 20  # of places; what stays in a processor's cache is faster, but neither is what limits


def places(block_bytes: int) -> int:
    """At least two, so that one is filled while the other is emptied."""
    return max(2, min(64, _BYTES // block_bytes))


class SharedSender:
    def __init__(self, channel: Channel, memory: BlockMemory):
        """Map the peer's memory. Raises PeerError."""
        self._channel, self._memory = channel, memory
        self._places = places(memory.block_bytes)
        self._free, self._next = self._places, 0
        self._descriptor = channel.receive_descriptor(PROGRESS)
        size = os.fstat(self._descriptor).st_size
        if size != self._places * memory.block_bytes:
            self.close()
            raise PeerError(f"{channel.peer} shares {size:,} bytes, where {self._places} blocks are due.")

    def send(self, run: Run) -> None:
        """Parts of blocks stand one behind the other from a place's beginning on."""
        most, at = max(1, self._places // 4), 0
        while at < len(run.blocks):
            count = min(most, len(run.blocks) - at, self._places - self._next)  # up to the end of the places
            while self._free < count:
                self._wait()
            some = run.some(at, count)
            self._fill(some)
            self._channel.send(some.message([self._next]), PROGRESS)
            self._free -= count
            self._next = (self._next + count) % self._places
            at += count

    def copied(self, message: Copied) -> None:
        self._free += message.count
        if self._free > self._places:
            raise PeerError(f"{self._channel.peer} gave back more places than there are.")

    def close(self) -> None:
        os.close(self._descriptor)

    def _wait(self) -> None:
        message = self._channel.receive(PROGRESS)
        if not isinstance(message, Copied):
            raise PeerError(f"{self._channel.peer} took no block out of shared memory.")
        self.copied(message)

    def _fill(self, run: Run) -> None:
        views = self._memory.views(run.blocks, run.start, run.end)
        offset = self._next * self._memory.block_bytes
        try:
            _whole(os.pwritev, self._descriptor, views, offset)
        except OSError as error:
            raise PeerError(f"Memory shared with {self._channel.peer} cannot be written: {error.strerror}.") from None


class SharedReceiver:
    def __init__(self, channel: Channel, memory: BlockMemory):
        """Create the shared memory and send it. Raises PeerError; OSError where the system gives no memory."""
        self._channel, self._memory = channel, memory
        self._places = places(memory.block_bytes)
        self._descriptor = os.memfd_create("inflight-kv-exchange", os.MFD_CLOEXEC)
        try:
            os.ftruncate(self._descriptor, self._places * memory.block_bytes)
            channel.send_descriptor(self._descriptor, PROGRESS)
        except BaseException:
            self.close()
            raise

    def receive(self, message: Blocks, into: Sequence[int]) -> None:
        if len(message.at) != 1 or message.at[0] + message.count > self._places:
            raise PeerError(f"{self._channel.peer} names places in shared memory that are not there.")
        views = self._memory.views(into, message.start, message.end or None)
        offset = message.at[0] * self._memory.block_bytes
        try:
            _whole(os.preadv, self._descriptor, views, offset)
        except OSError as error:
            raise PeerError(f"Memory shared with {self._channel.peer} cannot be read: {error.strerror}.") from None
        self._channel.send(Copied(message.count), PROGRESS)

    def close(self) -> None:
        os.close(self._descriptor)


def _whole(
    move: Callable[[int, list[memoryview], int], int], descriptor: int, views: list[memoryview], offset: int
) -> None:
    """All bytes of the views; the system may move fewer at once."""
    while views:
        moved = move(descriptor, views, offset)
        if moved <= 0:
            raise OSError(0, "it was cut short")
        offset += moved
        while views and moved >= len(views[0]):
            moved -= len(views[0])
            views = views[1:]
        if moved:
            views = [views[0][moved:], *views[1:]]
