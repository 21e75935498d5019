"""The host tier: cached blocks whose content is in host memory.

A device block with cached content that is about to be reused is copied to the host if a preempted sequence waits for
the content (`--preemption swap`), or, where the host is a tier of the prefix cache, in any case. Content without
waiters is evicted from the host for other content; content that finds no room is dropped.

Where transfers are asynchronous, a device block is reused only once its content is stored. A store for a waiter begins
when the block is needed (`make_room`), and the allocation waits for it. Other content is stored ahead of that
(`store_ahead`); no allocation waits for it, and it is dropped if it comes too late.

vLLM (arXiv 2309.06180) swaps out a whole victim; here a victim's content moves as far as its blocks are reused.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

from inflight.core.kv.block_pool import BlockPool, EvictionOrder
from inflight.core.kv.prefix_cache import CachedBlock, PrefixCache
from inflight.core.kv.transfers import Transfers
from inflight.core.types.plan import HOST

STORE_AHEAD_DIVISOR = 16  # content is stored ahead while less than this part of the pool is free

CachedBlocks = tuple[CachedBlock, ...]


class HostTier:
    def __init__(
        self,
        num_blocks: int,
        prefix: PrefixCache,
        pool: BlockPool,
        transfers: Transfers,
        keeps_all: bool = False,
        order: EvictionOrder | None = None,
    ):
        """Create a tier of free host blocks.

        Args:
            num_blocks: Host blocks.
            prefix: The cache of which this is a tier.
            pool: Device blocks.
            transfers: Copies the content.
            keeps_all: Whether content without waiters is stored, too.
            order: Order of eviction of host blocks; None: first stored, first evicted.
        """
        self.num_blocks = num_blocks
        self.num_stores = 0  # in flight, whose device blocks are free when they end
        self._prefix, self._pool, self._transfers = prefix, pool, transfers
        self._keeps_all = keeps_all
        self._free = list(range(num_blocks - 1, -1, -1))
        self._evictable: dict[int, CachedBlock] = {}  # content without waiters, by host block
        self._order = EvictionOrder() if order is None else order  # of these
        self._waiting: dict[int, CachedBlocks] = {}  # by number of the preempted sequence
        self._is_storing_ahead = False

    @property
    def num_used(self) -> int:
        return self.num_blocks - len(self._free)

    @property
    def num_waiting(self) -> int:
        """Preempted sequences for which content is kept."""
        return len(self._waiting)

    def free_blocks(self) -> tuple[int, ...]:
        return tuple(self._free)

    def waiters(self) -> tuple[tuple[int, tuple[int, ...]], ...]:
        """Return the host blocks for which preempted sequences wait, each with the numbers of these."""
        kept = (cached for blocks in self._waiting.values() for cached in blocks)
        return tuple({one.host_block: one.waiters for one in kept if one.host_block is not None}.items())

    # -- preempted sequences ------------------------------------------------------------------------------------
    def keep(self, number: int, blocks: Iterable[CachedBlock]) -> None:
        """Keep content for the preempted sequence of this number until `release`."""
        kept = tuple(blocks)
        if kept:
            self._waiting[number] = kept
        for cached in kept:
            cached.waiters = (*cached.waiters, number)

    def release(self, number: int, owner: object) -> None:
        """Keep nothing more for a sequence, which resumes or has ended. owner: the session of the content."""
        for cached in self._waiting.pop(number, ()):
            cached.waiters = tuple(one for one in cached.waiters if one != number)
            if cached.waiters or cached.lost or cached.host_block is None:
                continue
            if self._keeps_all:
                self._make_evictable(cached, owner)
            else:
                self._prefix.drop(cached)
                self._set_free(cached.host_block)

    # -- room on the device -------------------------------------------------------------------------------------
    def make_room(self, count: int, spared: Iterable[int | None] = ()) -> bool:
        """Begin to store the content for which preempted sequences wait in the blocks that the pool would evict.

        Args:
            count: Blocks to allocate; they are available.
            spared: Blocks that will be held before that.

        Returns:
            Whether the blocks can be allocated now, since no content must be stored first.
        """
        blocks = self._stored_first(count, spared)
        if blocks:
            self.num_stores += 1
            self._begin_store(blocks, is_ahead=False)
        return not blocks

    def has_room(self, count: int, spared: Iterable[int | None] = ()) -> bool:
        """Return whether `make_room` has nothing to store."""
        return not self._stored_first(count, spared)

    def store_ahead(self) -> None:
        """Begin to store the next content without waiters, while few blocks are free and many are evictable."""
        if not self._keeps_all or not self._transfers.asynchronous or self._is_storing_ahead:
            return
        few = max(1, self._pool.num_blocks // STORE_AHEAD_DIVISOR)
        if self._pool.free >= few or self._pool.evictable < 2 * few:
            return
        coming = map(self._prefix.at_block, self._pool.next_evicted(self._pool.free + few))
        if blocks := tuple(cached for cached in coming if not cached.waiters)[: self._room]:
            self._is_storing_ahead = True
            self._begin_store(blocks, is_ahead=True)

    def on_evict(self, block: int) -> None:
        """Store or drop the content of a device block that is about to be reused."""
        cached = self._prefix.at_block(block)
        if not self._transfers.asynchronous and (cached.waiters or self._keeps_all) and self._room:
            (host_block,) = self._take(1)
            self._transfers.begin("store", HOST, (block,), (host_block,))
            self._move_here(cached, host_block)
        else:
            self._prefix.drop(cached)

    def load(self, blocks: CachedBlocks) -> None:
        """Load content into new device blocks. The host blocks are free from the next plan on, or when the transfer has
        ended."""
        for cached in blocks:  # before the new blocks evict content to the host
            if cached.host_block is not None and self._evictable.pop(cached.host_block, None) is not None:
                self._order.discard(cached.host_block)
        device_blocks = self._pool.allocate(len(blocks))
        host_blocks = tuple(cached.host_block for cached in blocks if cached.host_block is not None)
        for cached, block in zip(blocks, device_blocks, strict=True):
            self._prefix.move(cached, block, None)
        on_end = partial(self._loaded, blocks, host_blocks)
        transfer_id = self._transfers.begin("load", HOST, device_blocks, host_blocks, on_end)
        if self._transfers.asynchronous:
            for cached in blocks:
                cached.loading = transfer_id

    def forget_all(self) -> None:
        """Free all host blocks but those of transfers in flight; the caller clears the cache."""
        busy = set(self._transfers.host_blocks_in_flight())
        self._free = [host_block for host_block in range(self.num_blocks - 1, -1, -1) if host_block not in busy]
        self._waiting.clear()
        self._evictable.clear()
        self._order.clear()

    # -- internal -----------------------------------------------------------------------------------------------
    def _stored_first(self, count: int, spared: Iterable[int | None]) -> CachedBlocks:
        if not self._transfers.asynchronous:
            return ()
        coming = map(self._prefix.at_block, self._pool.next_evicted(count, spared))
        return tuple(cached for cached in coming if cached.waiters)[: self._room]

    @property
    def _room(self) -> int:
        return len(self._free) + len(self._evictable)

    def _begin_store(self, blocks: CachedBlocks, is_ahead: bool) -> None:
        host_blocks = self._take(len(blocks))
        device_blocks = tuple(cached.block for cached in blocks if cached.block is not None)
        on_end = partial(self._stored, blocks, host_blocks, is_ahead)
        self._transfers.begin("store", HOST, device_blocks, host_blocks, on_end)

    def _stored(self, blocks: CachedBlocks, host_blocks: tuple[int, ...], is_ahead: bool, done: bool) -> None:
        if is_ahead:
            self._is_storing_ahead = False
        else:
            self.num_stores -= 1
        for cached, host_block in zip(blocks, host_blocks, strict=True):
            is_idle = not cached.lost and cached.block is not None and self._pool.ref_count(cached.block) == 1
            if done and is_idle and (cached.waiters or self._keeps_all):
                self._move_here(cached, host_block)
                continue
            self._set_free(host_block)
            if is_idle and not done:  # or it would be stored with every plan for as long as the host fails
                self._prefix.drop(cached)

    def _loaded(self, blocks: CachedBlocks, host_blocks: tuple[int, ...], done: bool) -> None:
        for host_block in host_blocks:
            self._set_free(host_block)
        for cached in blocks:
            cached.loading = 0
            if not done and not cached.lost:
                self._prefix.drop(cached)

    def _move_here(self, cached: CachedBlock, host_block: int) -> None:
        owner = None if cached.block is None else self._pool.owner(cached.block)
        self._prefix.move(cached, None, host_block)
        if not cached.waiters:
            self._make_evictable(cached, owner)

    def _make_evictable(self, cached: CachedBlock, owner: object) -> None:
        assert cached.host_block is not None, "content that the host evicts is on the host"
        self._evictable[cached.host_block] = cached
        self._order.add(cached.host_block, owner)

    def _take(self, count: int) -> tuple[int, ...]:
        """Return so many host blocks, evicting content from them if need be; there is room for them."""
        taken = []
        for _ in range(count):
            if not self._free:
                host_block = self._order.pop()
                self._prefix.drop(self._evictable.pop(host_block))
                self._set_free(host_block)
            taken.append(self._free.pop())
        return tuple(taken)

    def _set_free(self, host_block: int) -> None:
        self._order.forget(host_block)
        self._free.append(host_block)
