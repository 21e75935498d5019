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
    """Memory of blocks and of checkpoints, and their transfers with peers."""

    def __init__(
        self,
        options: KVTransferOptions,
        secret: PeerSecret,
        description: KVDescription,
        blocks: int,
        states: int = 0,
        state_bytes: int = 1,
    ):
        """Open KV transfer.

        Args:
            options: As of an engine.
            secret: Of the peers.
            description: Of the blocks, for peers.
            blocks: How many there are.
            states: How many checkpoints there are.
            state_bytes: Bytes of each.
        """
        self.bytes = bytearray(os.urandom(description.block_bytes * blocks))
        self.memory = BlockMemory(memoryview(self.bytes), description.block_bytes)
        self.states = BlockMemory(memoryview(bytearray(os.urandom(states * state_bytes))), state_bytes)
        self.description = description
        memory = KVMemory(self.memory, len(description.windows), self.states if states else None)
        self.peer_transfers = PeerTransfers(options, secret, lambda: self.description, memory)
        self._transfer_id, self._finished = 0, list[Transferred]()

    def export(self, export_id: str, names: Sequence[int], blocks: Sequence[int], groups: Sequence[int] = ()) -> int:
        return self._begin("send", export_tier(export_id), blocks, names, groups)

    def pull(
        self,
        peer: PeerSide | tuple[str, int],
        export_id: str,
        names: Sequence[int],
        blocks: Sequence[int],
        groups: Sequence[int] = (),
    ) -> int:
        host, port = peer.peer_transfers.address if isinstance(peer, PeerSide) else peer
        return self._begin("receive", PeerAddress(host, port, export_id).tier, blocks, names, groups)

    def ended(self, seconds: float = 10.0) -> Transferred:
        """Return the next transfer that ends."""
        last = time.monotonic() + seconds
        while time.monotonic() < last:
            self._finished += self.peer_transfers.poll() or ()
            if self._finished:
                return self._finished.pop(0)
            time.sleep(_TICK)
        raise AssertionError(f"no transfer has ended within {seconds:g} s")

    def block(self, block: int) -> bytes:
        return bytes(self.memory.views([block])[0])

    def state(self, slot: int) -> bytes:
        return bytes(self.states.views([slot])[0])

    def _begin(
        self, kind: TransferKind, tier: str, blocks: Sequence[int], names: Sequence[int], groups: Sequence[int]
    ) -> int:
        self._transfer_id += 1
        transfer = Transfer(self._transfer_id, kind, tier, tuple(blocks), tuple(names), tuple(groups))
        self.peer_transfers.begin(transfer)
        return self._transfer_id
