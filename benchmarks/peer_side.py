"""One end of KV transfer over memory of its own, without an engine, for measurements and tests.

Blocks hold random bytes, so that a wrong one shows, and no page of them is untouched.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence

from inflight.core.types.kv_transfer import KVTransferOptions, PeerAddress, export_tier
from inflight.core.types.plan import Transfer, TransferKind, Transferred
from inflight.execution.kv.block_memory import BlockMemory, KVMemory
from inflight.execution.kv.transfer.description import KVDescription
from inflight.execution.kv.transfer.peer_transfers import PeerTransfers
from inflight.peer_secret import PeerSecret

_TICK = 5e-4  # seconds between two looks, as an engine has that waits for blocks


class PeerSide:
    """Memory of so many blocks, and their transfers. description: of the blocks, for peers."""

    def __init__(self, options: KVTransferOptions, secret: PeerSecret, description: KVDescription, blocks: int):
        self.bytes = bytearray(os.urandom(description.block_bytes * blocks))
        self.memory = BlockMemory(memoryview(self.bytes), description.block_bytes)
        self.description = description
        self.peer_transfers = PeerTransfers(options, secret, lambda: self.description, KVMemory(self.memory))
        self._transfer_id, self._finished = 0, list[Transferred]()

    def give(self, export_id: str, names: Sequence[int], blocks: Sequence[int]) -> int:
        return self._begin("send", export_tier(export_id), blocks, names)

    def take(
        self, peer: PeerSide | tuple[str, int], export_id: str, names: Sequence[int], blocks: Sequence[int]
    ) -> int:
        host, port = peer.peer_transfers.address if isinstance(peer, PeerSide) else peer
        return self._begin("receive", PeerAddress(host, port, export_id).tier, blocks, names)

    def ended(self, seconds: float = 10.0) -> Transferred:
        """The next transfer that ends."""
        last = time.monotonic() + seconds
        while time.monotonic() < last:
            self._finished += self.peer_transfers.poll() or ()
            if self._finished:
                return self._finished.pop(0)
            time.sleep(_TICK)
        raise AssertionError(f"no transfer has ended within {seconds:g} s")

    def block(self, block: int) -> bytes:
        return bytes(self.memory.views([block])[0])

    def _begin(self, kind: TransferKind, place: str, blocks: Sequence[int], names: Sequence[int]) -> int:
        self._transfer_id += 1
        self.peer_transfers.begin(Transfer(self._transfer_id, kind, place, tuple(blocks), tuple(names)))
        return self._transfer_id
