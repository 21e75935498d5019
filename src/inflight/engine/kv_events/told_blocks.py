"""What subscribers believe to be cached: changes of the prefix cache come in, events go out.

Knows the tree of blocks that were told and not taken back. The cache keeps content that can be reached no more, because
what stood before it was dropped, until its block is needed; for a router that is gone, and is taken back at once. So
are the blocks of an adapter whose name another one has taken, since no request will ask for them. Decides nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

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
from inflight.engine.kv_events.wire import CPU, GPU, AllBlocksCleared, BlockRemoved, BlockStored, ExtraKeys, KVEvent


@dataclass(slots=True)
class _Root:
    """key: of the cache. digest: what stands before the first blocks, whose nodes are `children`."""

    key: SharedRoot
    digest: bytes
    children: set[int] = field(default_factory=set)

    @property
    def adapter(self) -> str | None:
        return None if self.key.adapter is None else self.key.adapter.name

    def extra_keys(self, is_first: bool) -> ExtraKeys:
        """As vLLM has them: the adapter with every block, the salt with the first."""
        named = () if self.adapter is None else (self.adapter,)
        salted = (self.key.salt,) if is_first and self.key.salt else ()
        return (*named, *salted) or None


@dataclass(slots=True)
class _Told:
    """A block. before: in the chain; None: it is the first one of its root."""

    digest: bytes
    root: _Root
    before: _Told | None
    medium: str = GPU
    children: set[int] = field(default_factory=set)

    @property
    def number(self) -> int:
        return int.from_bytes(self.digest)


class ToldBlocks:
    def __init__(self) -> None:
        self._told: dict[int, _Told] = {}  # by the cache's nodes
        self._roots: dict[SharedRoot, _Root] = {}  # that have blocks
        self._newest: dict[str, int] = {}  # numbers of adapters, by name
        self._last = -1  # the node that ends the last event's blocks, if that stores any

    def events(self, changes: list[CacheChange]) -> list[KVEvent]:
        """What the changes come to; blocks of a chain that follow each other are told together."""
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
        """Whose its name is now, though what it published is cleared since."""
        root = change.parent if isinstance(change, BlockPublished) else None
        if isinstance(root, SharedRoot) and (adapter := root.adapter) is not None:
            self._newest[adapter.name] = max(adapter.number, self._newest.get(adapter.name, adapter.number))

    def _publish(self, change: BlockPublished, events: list[KVEvent]) -> None:
        if isinstance(change.parent, SharedRoot):
            root = self._root(change.parent, events)
            before = None
        else:
            before = self._told.get(change.parent)
            root = None if before is None else before.root
        if root is None:
            return  # nobody can reach it
        digest = event_block_hash(root.digest if before is None else before.digest, change.token_ids)
        told = self._told[change.node] = _Told(digest, root, before)
        (root if before is None else before).children.add(change.node)
        last = events[-1] if events else None
        if isinstance(last, BlockStored) and change.parent == self._last:
            last.block_hashes.append(told.number)
            last.token_ids += change.token_ids
            assert last.extra_keys is not None, "every event has them"
            last.extra_keys.append(root.extra_keys(is_first=False))
        else:
            events.append(_stored(told, change.token_ids))
        self._last = change.node

    def _move(self, change: BlockMoved, events: list[KVEvent]) -> None:
        """It is told where it is before it is taken back where it was, so that nobody misses it meanwhile."""
        told = self._told.get(change.node)
        if told is None:
            return
        removed = BlockRemoved([told.number], told.medium)
        told.medium = CPU if change.to_host else GPU
        events += (_stored(told, change.token_ids), removed)

    def _drop(self, nodes: Iterable[int], events: list[KVEvent]) -> None:
        """They, and what is chained to them."""
        hashes: dict[str, list[int]] = {}
        left = list(nodes)
        while left:
            node = left.pop()
            told = self._told.pop(node, None)
            if told is None:
                continue
            (told.root if told.before is None else told.before).children.discard(node)
            if not told.root.children:
                self._roots.pop(told.root.key, None)
            hashes.setdefault(told.medium, []).append(told.number)
            left += told.children
        for medium, removed in hashes.items():
            last = events[-1] if events else None
            if isinstance(last, BlockRemoved) and last.medium == medium:
                last.block_hashes += removed
            else:
                events.append(BlockRemoved(removed, medium))

    def _root(self, key: SharedRoot, events: list[KVEvent]) -> _Root | None:
        """None: another adapter has taken the name of its own meanwhile."""
        root = self._roots.get(key)
        if root is not None:
            return root
        adapter = key.adapter
        if adapter is not None and (newest := self._newest.setdefault(adapter.name, adapter.number)) != adapter.number:
            if newest > adapter.number:
                return None
            self._newest[adapter.name] = adapter.number
            self._forget_adapter(adapter.name, events)
        root = self._roots[key] = _Root(key, event_root_hash(key.salt, None if adapter is None else adapter.name))
        return root

    def _forget_adapter(self, name: str, events: list[KVEvent]) -> None:
        for root in [one for one in self._roots.values() if one.adapter == name]:
            self._drop(root.children, events)

    def _clear(self) -> Iterator[KVEvent]:
        """Some routers take a cleared cache for that of the device alone."""
        on_host = [told.number for told in self._told.values() if told.medium == CPU]
        if on_host:
            yield BlockRemoved(on_host, CPU)
        yield AllBlocksCleared()
        self._told.clear()
        self._roots.clear()


def _stored(told: _Told, token_ids: tuple[int, ...]) -> BlockStored:
    return BlockStored(
        block_hashes=[told.number],
        parent_block_hash=None if told.before is None else told.before.number,
        token_ids=list(token_ids),
        block_size=len(token_ids),
        lora_id=None,
        medium=told.medium,
        lora_name=told.root.adapter,
        extra_keys=[told.root.extra_keys(told.before is None)],
    )
