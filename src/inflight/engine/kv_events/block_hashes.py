"""Names of blocks by their content: the same in every replica and process, whatever was computed there before.

A block's hash is made of the one before it and of its tokens; that before the first is made of the salt and the
adapter's name. They are names for others, who cannot see the content: the prefix cache itself compares tokens, so that
two contents that shared a name would at worst send a request to the wrong replica.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from hashlib import blake2b

BYTES = 8  # what every router takes: an unsigned number of 64 bits
_VERSION = b"inflight-kv-1"  # other rules want another name, so that replicas of different age share no hash


def root_hash(salt: str, adapter: str | None) -> bytes:
    """What stands before the first block. adapter: its name; None: the model as it is."""
    told = salt.encode()
    named = b"" if adapter is None else b"+" + adapter.encode()
    return _digest(struct.pack("<Q", len(told)) + told + named)


def block_hash(before: bytes, token_ids: Sequence[int]) -> bytes:
    return _digest(before + struct.pack(f"<{len(token_ids)}I", *token_ids))


def as_number(digest: bytes) -> int:
    return int.from_bytes(digest, "big")


def _digest(content: bytes) -> bytes:
    return blake2b(content, digest_size=BYTES, person=_VERSION).digest()
