"""Names of blocks in tiers, by their content: the hash of a chain of blocks, made of the one before and of its tokens.

The same in every process that computes with the same model in the same way: before the first block stands who shares
the chain, and behind that what the caller says the bits depend on. Unlike the hashes that are told to routers, these
decide what is served: they have 128 bits, and whoever stores a block stores its tokens beside it.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from hashlib import blake2b

from inflight.core.types.cache_changes import SharedRoot

BYTES = 16
_ROOT, _BLOCK = b"inflight-root-1", b"inflight-block-1"


def root_name(root: SharedRoot, identity: bytes) -> bytes:
    """identity: of the model and of how it computes, and of the adapter's files, if the root has one."""
    named = "" if root.adapter is None else root.adapter.name
    parts = (identity, root.salt.encode(), b"" if root.adapter is None else b"+" + named.encode())
    told = b"".join(len(part).to_bytes(8, "little") + part for part in parts)
    return blake2b(told, digest_size=BYTES, person=_ROOT).digest()


def next_name(before: bytes, token_ids: Sequence[int]) -> bytes:
    """Name the block with these tokens behind that one; the same whatever the machine's byte order is."""
    content = before + struct.pack(f"<{len(token_ids)}I", *token_ids)
    return blake2b(content, digest_size=BYTES, person=_BLOCK).digest()
