"""Hashes of blocks: of content alone, the same on every machine, in every process and version."""

from __future__ import annotations

import hashlib

from inflight.core.types.kv_blocks import block_hash, event_block_hash, event_root_hash

FIRST = 6465794244802020909  # of tokens 0 … 15


def test_hashes_do_not_change_from_version_to_version() -> None:
    """Replicas of two versions serve side by side during an update, each process with a hash seed of its own."""
    assert int.from_bytes(event_block_hash(event_root_hash("", None), tuple(range(16)))) == FIRST


def test_different_content_has_different_hashes() -> None:
    roots = [event_root_hash(*one) for one in [("", None), ("", ""), ("a", None), ("", "a"), ("a", "b"), ("ab", None)]]
    hashes = {event_block_hash(root, tokens) for root in roots for tokens in [(1, 2), (2, 1), (258,)]}
    chained = {event_block_hash(one, (1, 2)) for one in hashes}
    assert len(hashes) == 18 and len(chained) == 18 and not chained & hashes


def test_token_ids_are_little_endian() -> None:
    content = b"before" + bytes([1, 0, 0, 0]) + bytes([0x44, 0x33, 0x22, 0x11])
    name = hashlib.blake2b(content, digest_size=16, person=b"inflight-block-1").digest()
    assert block_hash(b"before", (1, 0x11223344)) == name
