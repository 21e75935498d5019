"""The prefix cache: from token content to the block that holds its keys and values.

Exact: a block is found by its own tokens and by the identity of the block before it, compared token by token, so that
no hash collision can ever mix content. Each cached block is a node; its key is (parent node, tokens); the root of a
chain is the request's salt. Node numbers are never used twice, so that a chain whose middle was evicted cannot be
entered again. A node's content lies in a device block or, swapped out, in a host block. Chains are those of the first
KV group; what another group holds of a node's tokens is found beside it, and may be missing. Knows nothing of
references or the order of eviction (`block_pool`), nor of the snapshots of recurrent state that others find beside a
node (`state_slots`): they are told when it is lost. Where there is a journal, it has what becomes of the chains.
Compare: automatic prefix caching in vLLM (hash chains) and RadixAttention (arXiv 2312.07104, a radix tree).
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import cast

from msgspec import Struct, field

from inflight.core.kv.cache_journal import CacheJournal
from inflight.core.types.kv_blocks import BlockDropped, BlockMoved, BlockPublished, CacheCleared, SharedRoot

Node = Hashable
Key = tuple[Node, ...]  # the node before, and the tokens: one flat tuple, which the garbage collector soon leaves alone


class CachedBlock(Struct, eq=False):
    """Where a node's content lies; exactly one of the two is set. lost: it cannot be found any more. loading: the
    transfer_id of the transfer that brings it into its device block; 0 where it is there."""

    node: int
    key: Key
    block: int | None
    host_block: int | None = None
    lost: bool = False
    loading: int = 0

    @property
    def token_ids(self) -> tuple[int, ...]:
        return cast(tuple[int, ...], self.key[1:])


class CachedChain(Struct):
    """What is cached of one sequence, from its first block on, as it was found last: it only grows until something is
    lost, so that most of it need not be looked up again. losses: of the cache, when it was found."""

    places: list[CachedBlock] = field(default_factory=list)
    losses: int = 0


class PrefixCache:
    def __init__(self, block_size: int, on_drop: Callable[[int], None], journal: CacheJournal | None = None):
        """on_drop(node) is called when a node's content is lost, by `drop`. journal: of the first group's blocks whose
        chains begin at a `SharedRoot`; None: nobody asks."""
        self._block_size = block_size
        self._on_drop = on_drop
        self._journal = journal
        self._found: dict[Key, CachedBlock] = {}
        self._nodes: dict[int, CachedBlock] = {}
        self._on_device: dict[int, CachedBlock] = {}
        self._last_node = 0
        self._losses = 0  # so far

    def __len__(self) -> int:
        return len(self._found)

    def __contains__(self, block: int) -> bool:
        """Whether a device block's content is findable."""
        return block in self._on_device

    def match(self, chain: CachedChain, root: Node, tokens: Callable[[int, int], tuple[int, ...]], most: int) -> None:
        """Bring the chain up to date: the longest one for the tokens, at most `most` blocks.

        tokens(start, end): of the sequence that the chain is of; always the same ones, and more with time."""
        places, size = chain.places, self._block_size
        if chain.losses != self._losses:
            chain.losses = self._losses
            first_lost = next((index for index, place in enumerate(places) if place.lost), len(places))
            del places[first_lost:]
        node = places[-1].node if places else root
        for start in range(len(places) * size, most * size, size):
            place = self._found.get((node, *tokens(start, start + size)))
            if place is None:
                break
            node = place.node
            places.append(place)

    def publish(self, parent: Node, tokens: tuple[int, ...], block: int) -> int:
        """Make a full block findable; returns the node to chain the next one to.

        When the same content is cached already, that block stays the findable one and `block` remains private."""
        before = self._last_node
        node = self._keep((parent, *tokens), block)
        if self._journal is not None and node > before and isinstance(parent, int | SharedRoot):
            self._journal.note(BlockPublished(node, parent, tokens))
        return node

    def publish_beside(self, node: int, group: int, block: int) -> int:
        """The same for what another KV group than the first holds of the node's tokens; returns a node of its own."""
        return self._keep((node, -group), block)

    def beside(self, node: int, group: int) -> CachedBlock | None:
        """What another group than the first has cached of a node's tokens. (No token has a number below 0.)"""
        return self._found.get((node, -group))

    def at(self, block: int) -> CachedBlock:
        """The place of a device block's findable content."""
        return self._on_device[block]

    def block_of(self, node: int) -> CachedBlock | None:
        return self._nodes.get(node)

    def drop(self, place: CachedBlock) -> None:
        """The content is lost; what was chained to it can be found no more."""
        place.lost = True
        self._losses += 1
        del self._found[place.key], self._nodes[place.node]
        if place.block is not None:
            del self._on_device[place.block]
        if self._journal is not None:
            self._journal.note(BlockDropped(place.node))
        self._on_drop(place.node)

    def move(self, place: CachedBlock, block: int | None, host_block: int | None) -> None:
        """The content lies elsewhere now; the chain stays whole."""
        if self._journal is not None and (place.block is None) is not (block is None):
            self._journal.note(BlockMoved(place.node, place.token_ids, to_host=block is None))
        if place.block is not None:
            del self._on_device[place.block]
        place.block, place.host_block = block, host_block
        if block is not None:
            self._on_device[block] = place

    def clear(self) -> None:
        for place in self._nodes.values():
            place.lost = True
        self._losses += 1
        self._found.clear()
        self._nodes.clear()
        self._on_device.clear()
        if self._journal is not None:
            self._journal.note(CacheCleared())

    def _keep(self, key: Key, block: int) -> int:
        node = self._last_node + 1
        new = CachedBlock(node, key, block)
        place = self._found.setdefault(key, new)  # the key is hashed once, which is most of the work
        if place is new:
            self._last_node = node
            self._on_device[block] = self._nodes[node] = place
        return place.node
