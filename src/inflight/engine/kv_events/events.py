"""KV events: changes of the prefix cache as vLLM puts them on the wire, so that routers written for it read ours.

A message's content is an array of the time, the events and the rank among data-parallel replicas; an event is a map
with its `type`, whose optional keys are left out where they have their default. (vLLM before 0.24 had arrays for events
too; routers read either.)
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import msgspec
from msgspec import Struct

from inflight.core.types.kv_blocks import (
    BlockDropped,
    BlockMoved,
    BlockPublished,
    CacheChange,
    CacheCleared,
    SharedRoot,
    event_block_hash,
    event_root_hash,
)

GPU = "GPU"  # the memory that the engine computes in: routers look for this name alone, and vLLM uses it on CPUs too
CPU = "CPU"  # the host's memory, where blocks are swapped to
RANK = 0  # a replica is one engine; several have addresses of their own

ExtraKeys = tuple[str, ...] | None


class Batch(Struct, frozen=True, array_like=True, omit_defaults=True):
    """Content of a message. ts: seconds since 1970."""

    ts: float
    events: list[BlockStored | BlockRemoved | AllBlocksCleared]
    data_parallel_rank: int | None = None


class BlockStored(Struct, tag=True, omit_defaults=True):
    """Blocks that follow each other in one chain.

    Attributes:
        block_hashes: Their hashes.
        parent_block_hash: Hash of the block before the first; None: the first is at a root.
        token_ids: Of all of them.
        block_size: Tokens of each.
        lora_id: How adapters were named before they had names; never set.
        medium: Memory that has them.
        lora_name: Adapter; None: none.
        extra_keys: For each block, what its hash is made of besides tokens.
    """

    block_hashes: list[int]
    parent_block_hash: int | None
    token_ids: list[int]
    block_size: int
    lora_id: int | None
    medium: str
    lora_name: str | None
    extra_keys: list[ExtraKeys] | None = None


class BlockRemoved(Struct, tag=True, omit_defaults=True):
    """Blocks that a memory has no more."""

    block_hashes: list[int]
    medium: str


class AllBlocksCleared(Struct, tag=True, frozen=True):
    """No memory has any block."""


KVEvent = BlockStored | BlockRemoved | AllBlocksCleared
encode = msgspec.msgpack.Encoder().encode


@dataclass(slots=True)
class _Root:
    """Root of chains. key: of the cache. digest: hash before the first blocks, whose nodes are `children`."""

    key: SharedRoot
    digest: bytes
    children: set[int] = field(default_factory=set)

    @property
    def adapter(self) -> str | None:
        return None if self.key.adapter is None else self.key.adapter.name

    def extra_keys(self, is_first: bool) -> ExtraKeys:
        """Return vLLM's extra keys: the adapter with every block, the salt with the first."""
        named = () if self.adapter is None else (self.adapter,)
        salted = (self.key.salt,) if is_first and self.key.salt else ()
        return (*named, *salted) or None


@dataclass(slots=True)
class _SentBlock:
    """A block that routers know. before: in the chain; None: it is the first of its root."""

    digest: bytes
    root: _Root
    before: _SentBlock | None
    medium: str = GPU
    children: set[int] = field(default_factory=set)

    @property
    def number(self) -> int:
        return int.from_bytes(self.digest)


class SentBlocks:
    """Blocks that routers believe to be cached.

    The cache keeps content that cannot be reached, because a block before it was dropped, until its memory is needed;
    for routers it is removed at once. So are the blocks of an adapter whose name another one has taken, since no
    request will ask for them.
    """

    def __init__(self) -> None:
        self._sent: dict[int, _SentBlock] = {}  # by the cache's nodes
        self._roots: dict[SharedRoot, _Root] = {}  # that have blocks
        self._newest: dict[str, int] = {}  # numbers of adapters, by name
        self._last = -1  # the node that ends the last event's blocks, if that stores any

    def events(self, changes: list[CacheChange]) -> list[KVEvent]:
        """Return the events of some changes; blocks that follow each other in a chain are one event."""
        cleared = max((at for at, one in enumerate(changes) if isinstance(one, CacheCleared)), default=-1)
        events = list(self._clear()) if cleared >= 0 else []
        self._last = -1
        for change in changes[: max(0, cleared)]:
            self._note_adapter(change)
        for change in changes[cleared + 1 :]:
            match change:
                case BlockPublished():
                    self._publish(change, events)
                case BlockMoved():
                    self._move(change, events)
                case BlockDropped(node):
                    self._drop((node,), events)
        return events

    def _note_adapter(self, change: CacheChange) -> None:
        """Note which adapter has a name now, though its blocks were cleared since."""
        root = change.parent if isinstance(change, BlockPublished) else None
        if isinstance(root, SharedRoot) and (adapter := root.adapter) is not None:
            self._newest[adapter.name] = max(adapter.number, self._newest.get(adapter.name, adapter.number))

    def _publish(self, change: BlockPublished, events: list[KVEvent]) -> None:
        if isinstance(change.parent, SharedRoot):
            root = self._root(change.parent, events)
            before = None
        else:
            before = self._sent.get(change.parent)
            root = None if before is None else before.root
        if root is None:
            return  # it cannot be reached
        digest = event_block_hash(root.digest if before is None else before.digest, change.token_ids)
        sent = self._sent[change.node] = _SentBlock(digest, root, before)
        (root if before is None else before).children.add(change.node)
        last = events[-1] if events else None
        if isinstance(last, BlockStored) and change.parent == self._last:
            last.block_hashes.append(sent.number)
            last.token_ids += change.token_ids
            assert last.extra_keys is not None, "every event has them"
            last.extra_keys.append(root.extra_keys(is_first=False))
        else:
            events.append(_stored(sent, change.token_ids))
        self._last = change.node

    def _move(self, change: BlockMoved, events: list[KVEvent]) -> None:
        """Store the block in the other memory before it is removed from the first, so that it is never missing."""
        sent = self._sent.get(change.node)
        if sent is None:
            return
        removed = BlockRemoved([sent.number], sent.medium)
        sent.medium = CPU if change.to_host else GPU
        events += (_stored(sent, change.token_ids), removed)

    def _drop(self, nodes: Iterable[int], events: list[KVEvent]) -> None:
        """Remove blocks, and all behind them."""
        hashes: dict[str, list[int]] = {}
        left = list(nodes)
        while left:
            node = left.pop()
            sent = self._sent.pop(node, None)
            if sent is None:
                continue
            (sent.root if sent.before is None else sent.before).children.discard(node)
            if not sent.root.children:
                self._roots.pop(sent.root.key, None)
            hashes.setdefault(sent.medium, []).append(sent.number)
            left += sent.children
        for medium, removed in hashes.items():
            last = events[-1] if events else None
            if isinstance(last, BlockRemoved) and last.medium == medium:
                last.block_hashes += removed
            else:
                events.append(BlockRemoved(removed, medium))

    def _root(self, key: SharedRoot, events: list[KVEvent]) -> _Root | None:
        """Return the root of a key; None if another adapter has taken the name."""
        root = self._roots.get(key)
        if root is not None:
            return root
        adapter = key.adapter
        if adapter is not None and (newest := self._newest.setdefault(adapter.name, adapter.number)) != adapter.number:
            if newest > adapter.number:
                return None
            self._newest[adapter.name] = adapter.number
            self._remove_adapter(adapter.name, events)
        root = self._roots[key] = _Root(key, event_root_hash(key.salt, None if adapter is None else adapter.name))
        return root

    def _remove_adapter(self, name: str, events: list[KVEvent]) -> None:
        for root in [one for one in self._roots.values() if one.adapter == name]:
            self._drop(root.children, events)

    def _clear(self) -> Iterator[KVEvent]:
        """Remove all blocks; some routers take a cleared cache for the device's alone."""
        on_host = [sent.number for sent in self._sent.values() if sent.medium == CPU]
        if on_host:
            yield BlockRemoved(on_host, CPU)
        yield AllBlocksCleared()
        self._sent.clear()
        self._roots.clear()


def _stored(sent: _SentBlock, token_ids: tuple[int, ...]) -> BlockStored:
    return BlockStored(
        block_hashes=[sent.number],
        parent_block_hash=None if sent.before is None else sent.before.number,
        token_ids=list(token_ids),
        block_size=len(token_ids),
        lora_id=None,
        medium=sent.medium,
        lora_name=sent.root.adapter,
        extra_keys=[sent.root.extra_keys(sent.before is None)],
    )
