"""Two engines' transfers in one process, over memory of their own (`benchmarks.peer_side`)."""

from __future__ import annotations

from dataclasses import replace

import msgspec

from benchmarks.peer_side import PeerSide
from inflight.core.types.kv_transfer import KVTransferOptions
from inflight.execution.kv.transfer.description import KVDescription
from inflight.peer_secret import PeerSecret

SECRET = b"a secret of the tests, no more"
BLOCK_BYTES, BLOCKS = 4096, 64
STATE_BYTES = 10_000
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


class Engine(PeerSide):
    """described: changes to the description."""

    def __init__(
        self,
        given: KVTransferOptions | None = None,
        secret: bytes = SECRET,
        block_bytes: int = BLOCK_BYTES,
        blocks: int = BLOCKS,
        states: int = 0,
        **described: object,
    ):
        description = msgspec.structs.replace(DESCRIPTION, **{"block_bytes": block_bytes, **described})
        super().__init__(given or options(), PeerSecret(secret), description, blocks, states, STATE_BYTES)


def options(**changed: object) -> KVTransferOptions:
    return replace(KVTransferOptions(role="both", transport="tcp", timeout=5.0, hold=5.0), **changed)  # type: ignore[arg-type]
