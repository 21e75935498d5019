"""What changes in the prefix cache, for those who mirror it elsewhere: which content can be found, and in which memory.

Plain data: nodes are told by their numbers, content by its tokens. A chain begins at a root, which says who shares it;
the node of a block is told after that of the block before it. Knows nothing of hashes and of who listens.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from inflight.core.types.adapter import Adapter


class SharedRoot(NamedTuple):
    """Where chains begin that requests of the same salt and adapter share. (A tuple, because the cache looks its chains
    up by it.)"""

    salt: str
    adapter: Adapter | None


@dataclass(frozen=True, slots=True)
class BlockPublished:
    """A full block can be found from now on, on the device. parent: the node of the block before it."""

    node: int
    parent: int | SharedRoot
    token_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class BlockMoved:
    """Its content lies in the other memory from now on, or will when a transfer has ended, and can still be found."""

    node: int
    token_ids: tuple[int, ...]
    to_host: bool


@dataclass(frozen=True, slots=True)
class BlockDropped:
    """Its content can be found no more, nor what is chained to it."""

    node: int


@dataclass(frozen=True, slots=True)
class CacheCleared:
    """Nothing can be found any more. Numbers of nodes may be used again."""


CacheChange = BlockPublished | BlockMoved | BlockDropped | CacheCleared
