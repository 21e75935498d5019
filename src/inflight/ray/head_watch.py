"""Whether Ray's head is there. Without it nothing is scheduled or replaced, and Ray ends whoever has joined it after 60
seconds, without a word of ours; this one says so before.

Knows an address and a connection to it; not what is asked there.
"""

from __future__ import annotations

import asyncio
import socket
from dataclasses import dataclass

LOOK_SECONDS = 1.0  # between two looks, and for which an answer is waited for
OWN_PATIENCE = 5.0  # seconds, of a head that nobody else would start anew
CLUSTER_PATIENCE = 45.0  # of one that may come back, with what it knew, on a cluster that is set up so


@dataclass(frozen=True, slots=True)
class HeadWatch:
    """address: host and port. patience: seconds for which it may be away."""

    address: str
    patience: float

    async def until_lost(self) -> str:
        """Returns when it has been away for so long: a sentence."""
        loop = asyncio.get_running_loop()
        last = loop.time()
        while loop.time() - last < self.patience:
            if await asyncio.to_thread(self.answers):
                last = loop.time()
            await asyncio.sleep(LOOK_SECONDS)
        return (
            f"Ray's head at {self.address} has not answered for {self.patience:g} s, and without it no replica can be "
            "reached; start the server anew."
        )

    def answers(self) -> bool:
        host, _, port = self.address.rpartition(":")
        try:
            socket.create_connection((host.strip("[]"), int(port)), timeout=LOOK_SECONDS).close()
        except OSError:
            return False
        return True
