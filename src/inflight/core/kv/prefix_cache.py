"""The prefix cache: maps token content to the block that holds its keys and values.

The lookup is exact: a block is found by its own tokens and by the node of the block before it, compared token by token,
so that no hash collision mixes content. Each cached block is a node with the key (parent node, tokens); the root of a
chain says which requests share it. Node numbers are never reused, so that a chain whose middle was evicted cannot be
entered again. A node's content is in a device block or in a host block. Chains are those of the first KV group; the
blocks of other groups are found by the node of the first group's block, and may be missing.

Compare automatic prefix caching in vLLM (hash chains) and RadixAttention (arXiv 2312.07104, a radix tree).
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import cast

from msgspec import Struct, field

from inflight.core.types.kv_blocks import (
    BlockDropped,
    BlockMoved,
    BlockPublished,
    CacheChange,
    CacheCleared,
    SharedRoot,
)

Node = Hashable
Key = tuple[Node, ...]  # parent node and tokens: one flat tuple, which the garbage collector soon leaves alone


class KVEventQueue:
    """Changes of the prefix cache, in order, for an observer that mirrors it and takes them after every step."""

    def __init__(self) -> None:
        self._changes: list[CacheChange] = []

    def append(self, change: CacheChange) -> None:
        self._changes.append(change)

    def take(self) -> list[CacheChange]:
        """Return the changes since the last call."""
        changes, self._changes = self._changes, []
        return changes


class CachedBlock(Struct, eq=False):
    """Cached content of one block.

    Attributes:
        node: Its number, never used twice.
        key: Parent node and tokens.
        block: Device block with the content, or None.
        host_block: Host block with the content, or None; exactly one of the two is set.
        lost: Whether it was dropped from the cache.
        loading: Id of the transfer that loads the content into its device block; 0: none.
        waiters: Numbers of preempted sequences that will resume behind the content.
    """

    node: int
    key: Key
    block: int | None
    host_block: int | None = None
    lost: bool = False
    loading: int = 0
    waiters: tuple[int, ...] = ()

    @property
    def token_ids(self) -> tuple[int, ...]:
        return cast(tuple[int, ...], self.key[1:])

    @property
    def group(self) -> int:
        return max(0, -cast(int, self.key[1]))


class CachedChain(Struct):
    """Leading cached blocks of one sequence, as of the last `match`. It only grows until a block is dropped, so that
    most of it need not be looked up again. losses: blocks that the cache had dropped then."""

    blocks: list[CachedBlock] = field(default_factory=list)
    losses: int = 0


class PrefixCache:
    def __init__(self, block_size: int, on_drop: Callable[[int], None], events: KVEventQueue | None = None):
        """Create an empty cache.

        Args:
            block_size: Tokens of a block.
            on_drop: Called with the node of each block that `drop` drops.
            events: Queue of changes; None: no observer.
        """
        self._block_size = block_size
        self._on_drop = on_drop
        self._events = events
        self._by_key: dict[Key, CachedBlock] = {}
        self._by_node: dict[int, CachedBlock] = {}
        self._by_block: dict[int, CachedBlock] = {}
        self._last_node = 0
        self._losses = 0
        self.has_block = self._by_block.__contains__  # whether a device block's content can be found
        self.blocks = self._by_block.keys()  # device blocks whose content can be found

    def __len__(self) -> int:
        return len(self._by_key)

    def match(self, chain: CachedChain, root: Node, tokens: Callable[[int, int], tuple[int, ...]], limit: int) -> None:
        """Update a chain to the longest one for a sequence's tokens.

        Args:
            chain: The sequence's chain.
            root: Root of the chain.
            tokens: Returns the sequence's tokens from start to end; known tokens never change.
            limit: Blocks of the chain at most.
        """
        blocks, size = chain.blocks, self._block_size
        if chain.losses != self._losses:
            chain.losses = self._losses
            first_lost = next((index for index, cached in enumerate(blocks) if cached.lost), len(blocks))
            del blocks[first_lost:]
        if not self._by_key:
            return  # as where requests share nothing
        node = blocks[-1].node if blocks else root
        for start in range(len(blocks) * size, limit * size, size):
            cached = self._by_key.get((node, *tokens(start, start + size)))
            if cached is None:
                break
            node = cached.node
            blocks.append(cached)

    def publish(self, parent: Node, tokens: tuple[int, ...], block: int) -> int:
        """Make a full block findable; return its node, the parent of the next block.

        Where the same content is cached already, that block stays findable and `block` remains private."""
        before = self._last_node
        node = self._add((parent, *tokens), block)
        if self._events is not None and node > before and isinstance(parent, int | SharedRoot):
            self._events.append(BlockPublished(node, parent, tokens))
        return node

    def publish_chain(self, parent: Node, tokens: tuple[int, ...], blocks: Sequence[int]) -> Node:
        """Make successive full blocks findable, as `publish` does each; return the node of the last one.

        Args:
            parent: Node before the first block.
            tokens: Of all blocks.
            blocks: Device blocks, in order.
        """
        size = self._block_size
        add = self._add if self._events is None else None
        for index, block in enumerate(blocks):
            of_block = tokens[index * size : (index + 1) * size]
            parent = self.publish(parent, of_block, block) if add is None else add((parent, *of_block), block)
        return parent

    def publish_in_group(self, node: int, group: int, block: int) -> int:
        """Make a block of another KV group than the first findable by the node of the same tokens; return its own node.

        No token id is negative, so that the key is unique."""
        return self._add((node, -group), block)

    def in_group(self, node: int, group: int) -> CachedBlock | None:
        """Return the cached block of another KV group than the first for a node's tokens."""
        return self._by_key.get((node, -group))

    def at_block(self, block: int) -> CachedBlock:
        """Return the cached content of a device block."""
        return self._by_block[block]

    def at_node(self, node: int) -> CachedBlock | None:
        return self._by_node.get(node)

    def drop(self, cached: CachedBlock) -> None:
        """Forget a block's content; the chain behind it can no longer be found."""
        cached.lost = True
        self._losses += 1
        del self._by_key[cached.key], self._by_node[cached.node]
        if cached.block is not None:
            del self._by_block[cached.block]
        if self._events is not None:
            self._events.append(BlockDropped(cached.node))
        self._on_drop(cached.node)

    def move(self, cached: CachedBlock, block: int | None, host_block: int | None) -> None:
        """Note that the content is in another block; the chain stays whole."""
        if self._events is not None and (cached.block is None) is not (block is None):
            self._events.append(BlockMoved(cached.node, cached.token_ids, to_host=block is None))
        if cached.block is not None:
            del self._by_block[cached.block]
        cached.block, cached.host_block = block, host_block
        if block is not None:
            self._by_block[block] = cached

    def clear(self) -> None:
        for cached in self._by_node.values():
            cached.lost = True
        self._losses += 1
        self._by_key.clear()
        self._by_node.clear()
        self._by_block.clear()
        if self._events is not None:
            self._events.append(CacheCleared())

    def _add(self, key: Key, block: int) -> int:
        node = self._last_node + 1
        new = CachedBlock(node, key, block)
        cached = self._by_key.setdefault(key, new)  # the key is hashed once, which is most of the work
        if cached is new:
            self._last_node = node
            self._by_block[block] = self._by_node[node] = cached
        return cached.node
