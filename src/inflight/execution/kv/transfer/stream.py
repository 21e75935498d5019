"""Blocks in the connection's own stream, behind the message that announces them: between hosts, by TCP.

From a block's memory to the socket and from there into a block, without a copy in between.
"""

from __future__ import annotations

from collections.abc import Sequence

from inflight.execution.kv.block_memory import BlockMemory
from inflight.execution.kv.transfer.transports import PROGRESS, Run
from inflight.execution.kv.transfer.wire import Blocks, Channel, Copied

NAME = "stream"
_AT_ONCE = 8 << 20  # bytes behind a message, which take far less than PROGRESS on a link that is worth it


class StreamSender:
    def __init__(self, channel: Channel, memory: BlockMemory):
        self._channel, self._memory = channel, memory

    def send(self, run: Run) -> None:
        for some in run.cut(max(1, _AT_ONCE // run.part)):
            self._channel.send(some.message(), PROGRESS, self._memory.views(some.blocks, some.start, some.end))

    def copied(self, message: Copied) -> None:
        """Do nothing: no buffer is reused."""

    def close(self) -> None:
        pass


class StreamReceiver:
    def __init__(self, channel: Channel, memory: BlockMemory):
        self._channel, self._memory = channel, memory

    def receive(self, message: Blocks, into: Sequence[int]) -> None:
        self._channel.receive_bytes(self._memory.views(into, message.start, message.end or None), PROGRESS)

    def close(self) -> None:
        pass
