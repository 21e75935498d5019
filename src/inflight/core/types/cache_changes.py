"""What changes in the prefix cache, for those who mirror it elsewhere: which content can be found, and in which memory.

Plain data: nodes are told by their numbers, content by its tokens. A chain begins at a root, which says who shares it;
the node of a block is told after that of the block before it. Knows nothing of hashes and of who listens.
"""

from __future__ import annotations

from typing import NamedTuple

from msgspec import Struct

from inflight.core.types.adapter import Adapter


class SharedRoot(NamedTuple):
    """Where chains begin that requests of the same salt and adapter share. (A tuple, because the cache looks its chains
    up by it.)"""

    salt: str
    adapter: Adapter | None


class BlockPublished(Struct, frozen=True):
    """A full block can be found from now on, on the device. parent: the node of the block before it."""

    node: int
    parent: int | SharedRoot
    token_ids: tuple[int, ...]


class BlockMoved(Struct, frozen=True):
    """Its content lies in the other memory from now on, or will when a transfer has ended, and can still be found."""

    node: int
    token_ids: tuple[int, ...]
    to_host: bool


class BlockDropped(Struct, frozen=True):
    """Its content can be found no more, nor what is chained to it."""

    node: int


class CacheCleared(Struct, frozen=True):
    """Nothing can be found any more. Numbers of nodes may be used again."""


CacheChange = BlockPublished | BlockMoved | BlockDropped | CacheCleared
