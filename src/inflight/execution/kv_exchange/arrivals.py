"""What of the blocks of a pull has come: each from its beginning on, in parts. Knows numbers, and which message
tells of none that could come next."""

from __future__ import annotations

from inflight.execution.kv_exchange.wire import Blocks


class Arrivals:
    def __init__(self, blocks: int, block_bytes: int):
        self._have, self._block_bytes = [0] * blocks, block_bytes
        self._missing = blocks

    @property
    def is_whole(self) -> bool:
        return not self._missing

    def fits(self, message: Blocks) -> bool:
        """Whether it tells of the next bytes of blocks that were asked for."""
        end, have = message.end or self._block_bytes, self._have[message.first : message.first + message.count]
        return (
            0 < message.count == len(have) and message.start < end <= self._block_bytes and {*have} == {message.start}
        )

    def came(self, message: Blocks) -> None:
        end = message.end or self._block_bytes
        self._have[message.first : message.first + message.count] = [end] * message.count
        self._missing -= message.count if end == self._block_bytes else 0
