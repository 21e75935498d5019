"""KV blocks: how many a sequence needs, their hashes, what changes in the prefix cache, and where they are kept.

A block's hash is made of the hash before it and of the block's tokens. Hashes in tiers decide what is served: they have
128 bits, are the same in every process that computes with the same model in the same way, and a store keeps a block's
tokens beside it. Hashes of KV events are for routers: they have 64 bits, and are the same in every replica.
"""

from __future__ import annotations

import struct
from bisect import bisect_right
from collections.abc import Callable, Sequence
from hashlib import blake2b
from typing import Literal, NamedTuple, Protocol

from msgspec import Struct

from inflight.core.types.request import Request
from inflight.core.types.sampling import Adapter

HASH_BYTES = 16
_ROOT, _BLOCK, _GROUP = b"inflight-root-1", b"inflight-block-1", b"inflight-group-1"
EVENT_HASH_BYTES = 8  # as routers take them
_EVENT = b"inflight-kv-1"  # other rules need another name, so that replicas of different versions share no hash


# -- sizes ------------------------------------------------------------------------------------------------------


def first_seen(position: int, window: int) -> int:
    """Return the first position that a query at `position` sees."""
    return max(0, position - window + 1) if window else 0


def window_blocks(window: int, chunk: int, block_size: int) -> int:
    """Return the blocks of a group with a window that a chunk needs at most, wherever in a block the window begins."""
    return -(-(window + chunk - 2) // block_size) + 1


def max_blocks(tokens: int, block_size: int, windows: Sequence[int], chunk: int) -> int:
    """Return the blocks of all groups that a sequence needs at most.

    Args:
        tokens: Length of the sequence.
        block_size: Tokens of a block, the same in every group, so that one pool serves all.
        windows: Window of each group; 0: none. Blocks behind a window are freed while the sequence runs.
        chunk: Tokens of its longest chunk.
    """
    each = -(-tokens // block_size)
    return sum(min(each, window_blocks(window, chunk, block_size)) if window else each for window in windows)


def max_sequence_tokens(num_blocks: int, block_size: int, windows: Sequence[int], chunk: int, limit: int) -> int:
    """Return the length of the longest sequence that fits into so many blocks.

    Args:
        num_blocks: Blocks of all groups.
        block_size: Tokens of a block.
        windows: Window of each group; 0: none.
        chunk: Tokens of its longest chunk.
        limit: Longest length of all, which counts where every group has a window.
    """
    if any(not window for window in windows):
        limit = num_blocks * block_size
    lengths = range(block_size, limit + block_size, block_size)
    whole = bisect_right(lengths, num_blocks, key=lambda tokens: max_blocks(tokens, block_size, windows, chunk))
    return min(limit, whole * block_size)


# -- hashes -----------------------------------------------------------------------------------------------------


class SharedRoot(NamedTuple):
    """Root of the chains that requests of the same salt and adapter share; a tuple, as the key of a dictionary."""

    salt: str
    adapter: Adapter | None


def root_hash(root: SharedRoot, fingerprint: bytes) -> bytes:
    """Return the hash that a chain begins with.

    Args:
        root: Which requests share the chain.
        fingerprint: Of all that the bits depend on: the model, how it computes, and the adapter's files, if any.
    """
    adapter = b"" if root.adapter is None else b"+" + root.adapter.name.encode()
    parts = (fingerprint, root.salt.encode(), adapter)
    content = b"".join(len(part).to_bytes(8, "little") + part for part in parts)
    return blake2b(content, digest_size=HASH_BYTES, person=_ROOT).digest()


def block_hash(before: bytes, token_ids: Sequence[int]) -> bytes:
    """Return the hash of a block behind that one, whatever the machine's byte order is."""
    return blake2b(before + _packed(token_ids), digest_size=HASH_BYTES, person=_BLOCK).digest()


def group_hash(of_first: bytes, group: int) -> bytes:
    """Return the hash of what another group than the first has at a block: a block, or a checkpoint of the recurrent
    state as of the block's end. of_first: hash of the first group's block."""
    return blake2b(of_first + bytes([group]), digest_size=HASH_BYTES, person=_GROUP).digest()


def event_root_hash(salt: str, adapter: str | None) -> bytes:
    """Return the hash that a chain begins with in KV events. adapter: its name; None: the model alone."""
    content = salt.encode()
    named = b"" if adapter is None else b"+" + adapter.encode()
    content = struct.pack("<Q", len(content)) + content + named
    return blake2b(content, digest_size=EVENT_HASH_BYTES, person=_EVENT).digest()


def event_block_hash(before: bytes, token_ids: Sequence[int]) -> bytes:
    """Return the hash of a block behind that one in KV events; a collision sends a request to the wrong replica."""
    return blake2b(before + _packed(token_ids), digest_size=EVENT_HASH_BYTES, person=_EVENT).digest()


def _packed(token_ids: Sequence[int]) -> bytes:
    return struct.pack(f"<{len(token_ids)}I", *token_ids)


# -- changes of the prefix cache, for mirrors of it: a block's node comes after that of the block before it -------


class BlockPublished(Struct, frozen=True):
    """A full block can be found from now on, on the device. parent: the node of the block before it."""

    node: int
    parent: int | SharedRoot
    token_ids: tuple[int, ...]


class BlockMoved(Struct, frozen=True):
    """A block's content is in the other memory from now on, or once a transfer has ended, and can still be found."""

    node: int
    token_ids: tuple[int, ...]
    to_host: bool


class BlockDropped(Struct, frozen=True):
    """A block's content can no longer be found, nor what is chained to it."""

    node: int


class CacheCleared(Struct, frozen=True):
    """No block can be found any more. Numbers of nodes may be used again."""


CacheChange = BlockPublished | BlockMoved | BlockDropped | CacheCleared


# -- stores beyond the device and its host: a folder or a peer -----------------------------------------------------


class KVChain(Struct, frozen=True):
    """Blocks of one prompt in a source.

    Attributes:
        kind: As in `Transfer`.
        tier: As in `Transfer`.
        root: Hash that the chain begins with.
        has: Returns whether the source has what a group keeps at a block: has(index of the block, group, number of its
            hash). The group behind the last KV group is the recurrent state at the block's end.
        always: Whether to load at any cost, as what a peer has computed for this very request; otherwise only where
            computing takes longer.
    """

    kind: Literal["load", "receive"]
    tier: str
    root: bytes
    has: Callable[[int, int, int], bool]
    always: bool = False


class KVSource(Protocol):
    """Answers at once, from memory: it reads no file and asks no peer. An answer may be outdated by the time of the
    transfer, which then fails, and the tokens are computed."""

    def chain(self, request: Request, root: SharedRoot) -> KVChain | None:
        """Return the blocks of a request's prompt, kept under this root; None: there are none."""


class KVStore(Protocol):
    """Keeps blocks beyond the device, for later and for others. Answers at once, as sources do."""

    tier: str

    def root(self, root: SharedRoot) -> bytes | None:
        """Return the hash that a chain begins with; None: blocks of this root are not stored."""

    def wants(self, number: int) -> bool:
        """Return whether a unit is to be stored: it is absent, not being written, and there is room. number: of its
        hash, which is its `remote_blocks` entry."""
