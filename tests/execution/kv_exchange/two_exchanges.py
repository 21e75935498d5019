"""Two exchanges in one process, over memory of their own, and what a test needs to drive them.

Knows how transfers are begun and asked for; nothing of engines. Blocks hold random bytes, so that a wrong one shows.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import replace

from inflight.core.types.kv_exchange_options import KVExchangeOptions
from inflight.core.types.peers import PeerPlace, giving_place
from inflight.core.types.plan import Transfer, Transferred
from inflight.execution.kv_exchange.block_memory import BlockMemory
from inflight.execution.kv_exchange.description import KVDescription
from inflight.execution.kv_exchange.exchange import KVExchange
from inflight.peer_secret import PeerSecret

SECRET = b"a secret of the tests, no more"
BLOCK_BYTES, BLOCKS = 4096, 64
DESCRIPTION = KVDescription(
    release="1.2",
    model="tiny",
    weights="abc",
    dtype="bfloat16",
    kv_format="bfloat16",
    kernels="native avx512_bf16",
    layers="xyz",
    block_size=16,
    block_bytes=BLOCK_BYTES,
    tensor_parallel=1,
    adapters={"french": "123"},
)


class Engine:
    """Memory and an exchange. described: changes to the description."""

    def __init__(
        self,
        options: KVExchangeOptions | None = None,
        secret: bytes = SECRET,
        block_bytes: int = BLOCK_BYTES,
        **described: object,
    ):
        self.bytes = bytearray(os.urandom(block_bytes * BLOCKS))
        self.memory = BlockMemory(memoryview(self.bytes), block_bytes)
        self.description = replace_struct(DESCRIPTION, described)
        self.exchange = KVExchange(
            options or KVExchangeOptions(role="both", way="tcp", timeout=5.0, hold=5.0),
            PeerSecret(secret),
            lambda: self.description,
            self.memory,
        )
        self._ticket, self._told = 0, list[Transferred]()

    def give(self, export_id: str, names: Sequence[int], blocks: Sequence[int]) -> int:
        return self._begin("send", giving_place(export_id), blocks, names)

    def take(self, peer: Engine | tuple[str, int], export_id: str, names: Sequence[int], blocks: Sequence[int]) -> int:
        host, port = peer.exchange.address if isinstance(peer, Engine) else peer
        return self._begin("receive", PeerPlace(host, port, export_id).place, blocks, names)

    def ended(self, seconds: float = 10.0) -> Transferred:
        """The next ticket that ends."""
        last = time.monotonic() + seconds
        while time.monotonic() < last:
            self._told += self.exchange.poll() or ()
            if self._told:
                return self._told.pop(0)
            time.sleep(0.002)
        raise AssertionError(f"no ticket has ended within {seconds:g} s")

    def block(self, block: int) -> bytes:
        return bytes(self.memory.views([block])[0])

    def _begin(self, kind: str, place: str, blocks: Sequence[int], names: Sequence[int]) -> int:
        self._ticket += 1
        self.exchange.begin(Transfer(self._ticket, kind, place, tuple(blocks), tuple(names)))  # type: ignore[arg-type]
        return self._ticket


def replace_struct(description: KVDescription, changed: dict[str, object]) -> KVDescription:
    return type(description)(
        **{**{name: getattr(description, name) for name in description.__struct_fields__}, **changed}
    )


def options(**changed: object) -> KVExchangeOptions:
    return replace(KVExchangeOptions(role="both", way="tcp", timeout=5.0, hold=5.0), **changed)  # type: ignore[arg-type]
