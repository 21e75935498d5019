"""How blocks travel once a connection stands: one interface for all ways.

A way has two ends. The sender is told which blocks are there, in the order in which they were asked for; the receiver
is handed each `Blocks` message, and puts them into blocks of its own. Knows neither exports nor tickets.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from inflight.execution.kv_exchange.wire import Blocks, Copied

PROGRESS = 10.0  # seconds in which some of what is on its way has come; else the peer is lost


class Sender(Protocol):
    def send(self, blocks: Sequence[int]) -> None:
        """Raises PeerError."""

    def copied(self, message: Copied) -> None:
        """The receiver has said so."""

    def close(self) -> None: ...


class Receiver(Protocol):
    def receive(self, message: Blocks, into: Sequence[int]) -> None:
        """What the message tells of, into as many blocks; when it returns, or raises, nothing touches them any more.
        Raises PeerError."""

    def close(self) -> None: ...
