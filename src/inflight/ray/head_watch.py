"""Watch whether Ray's head accepts connections.

Without the head Ray neither schedules nor replaces replicas, and after 60 s ends every process that has joined it.
The watch stops the server with an error message before that.
"""

from __future__ import annotations

import asyncio
import socket
from dataclasses import dataclass

LOOK_SECONDS = 1.0  # between two attempts to connect, and the timeout of each
OWN_PATIENCE = 5.0  # seconds without an answer of a head on this machine, which no supervisor restarts
CLUSTER_PATIENCE = 45.0  # seconds of a cluster's head, which may restart with its state


@dataclass(frozen=True, slots=True)
class HeadWatch:
    """Watch one head.

    Attributes:
        address: Host and port.
        patience: Seconds without an answer after which the head counts as lost.
    """

    address: str
    patience: float

    async def until_lost(self) -> str:
        """Wait until the head is lost; return the error message."""
        loop = asyncio.get_running_loop()
        last = loop.time()
        while loop.time() - last < self.patience:
            if await asyncio.to_thread(self.answers):
                last = loop.time()
            await asyncio.sleep(LOOK_SECONDS)
        return (
            f"Ray's head at {self.address} has not answered for {self.patience:g} s, and without it no replica can be "
            "reached; restart the server."
        )

    def answers(self) -> bool:
        host, _, port = self.address.rpartition(":")
        try:
            socket.create_connection((host.strip("[]"), int(port)), timeout=LOOK_SECONDS).close()
        except OSError:
            return False
        return True
