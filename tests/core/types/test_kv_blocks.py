"""Names of blocks in tiers: the same on every machine."""

from __future__ import annotations

import hashlib

from inflight.core.types.kv_blocks import block_hash


def test_token_ids_are_little_endian() -> None:
    content = b"before" + bytes([1, 0, 0, 0]) + bytes([0x44, 0x33, 0x22, 0x11])
    name = hashlib.blake2b(content, digest_size=16, person=b"inflight-block-1").digest()
    assert block_hash(b"before", (1, 0x11223344)) == name
