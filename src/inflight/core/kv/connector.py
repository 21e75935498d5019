"""The KV connector: loads prefixes of waiting sequences from tiers and peers, and writes cached blocks to a tier.

Blocks that are loaded are allocated and published at once, marked as loading. Only their transfer holds them: a waiting
sequence holds no block, so that waiting cannot deadlock. When the transfer has ended they are cached blocks like all
others; if it failed they are dropped and computed. `RestoreCost` chooses between loading and computing.

A block may be written once the step that computes it is committed; what a failed step leaves must never be stored.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial
from typing import cast

from msgspec import Struct

from inflight.core.estimation.latency import LatencyModel, RestoreCost
from inflight.core.kv.block_pool import BlockPool
from inflight.core.kv.prefix_cache import CachedBlock, PrefixCache
from inflight.core.kv.prefix_sharing import Lookup, PrefixSharing
from inflight.core.kv.transfers import Transfers
from inflight.core.sequence import Sequence
from inflight.core.types.kv_blocks import KVMatch, KVSource, KVStore, SharedRoot
from inflight.core.types.sampling import Adapter
from inflight.counted import counted

MAX_AHEAD_SHARE = 0.5  # of the pool, loaded for sequences that still wait
WRITE_DIVISOR = 8  # at most this part of the pool is being written
WRITE_BATCH = 16  # blocks of a transfer at most: each is held until the last is stored

Fingerprint = Callable[[Adapter | None], bytes]  # of the model, how it computes, and an adapter's files
Parent = int | SharedRoot


class KVTiers(Struct, frozen=True):
    """Tiers and peers of an engine.

    Attributes:
        sources: Where prefixes of waiting sequences are looked up.
        cost: Chooses between loading and computing.
        store: Where cached blocks are written; None: nowhere.
        fingerprint: For the hashes of blocks that are exported to peers; None: none are.
    """

    sources: tuple[KVSource, ...]
    cost: RestoreCost
    store: KVStore | None = None
    fingerprint: Fingerprint | None = None

    def __bool__(self) -> bool:
        return bool(self.sources) or self.store is not None or self.fingerprint is not None


NO_TIERS = KVTiers((), RestoreCost(LatencyModel()))


class OffloadWriter:
    """Writes cached blocks to a tier beside the steps. Blocks that are evicted before their turn are not written."""

    def __init__(self, pool: BlockPool, prefix: PrefixCache, transfers: Transfers, store: KVStore | None):
        """Create it without blocks. store: where they are written; None: nowhere."""
        self.num_stored = self.num_failed = self.num_missed = 0  # blocks since the start; missed: evicted before
        self._prefix, self._transfers, self._store = prefix, transfers, store
        self._max_in_flight = max(1, pool.num_blocks // WRITE_DIVISOR)
        self._hashes: dict[int, bytes] = {}  # of cached nodes
        self._planned: deque[tuple[int, CachedBlock]] = deque()  # with the step that computes each, in order
        self._ready: deque[CachedBlock] = deque()
        self._step = -1  # planned last
        self._in_flight = 0  # blocks

    @property
    def is_waiting(self) -> bool:
        """Whether a block is ready and not being written."""
        return bool(self._ready)

    def add_planned(self, node: int, parent: Parent, token_ids: tuple[int, ...]) -> None:
        """Add a block that a plan computes: the one under construction, or one in flight. A block that is loading is
        added when its load has ended (`add_loaded`)."""
        cached = self._hashed(node, parent, token_ids)
        if cached is not None and not cached.loading:
            self._planned.append((self._step, cached))

    def add_loaded(self, cached: CachedBlock) -> None:
        """Add a block whose content was loaded."""
        self._hashed(cached.node, cast(Parent, cached.key[0]), cached.token_ids)
        if cached.node in self._hashes:
            self._ready.append(cached)

    def on_drop(self, node: int) -> None:
        """Forget a node that was dropped from the cache."""
        self._hashes.pop(node, None)

    def forget_all(self) -> None:
        """Forget what steps in flight compute, after one failed."""
        self._planned.clear()
        self._hashes.clear()

    def begin_step(self, step: int) -> None:
        """Begin to write ready blocks with the plan of this step."""
        self._step = step
        loading: list[CachedBlock] = []
        store = self._store
        while store is not None and self._ready and self._in_flight < self._max_in_flight:
            blocks: list[CachedBlock] = []
            hashes: list[bytes] = []
            while self._ready and len(blocks) < min(WRITE_BATCH, self._max_in_flight - self._in_flight):
                cached = self._ready.popleft()
                block_hash = self._hashes.get(cached.node)
                if cached.lost or cached.block is None or block_hash is None:
                    self.num_missed += 1
                elif cached.loading:  # it was on the host meanwhile
                    loading.append(cached)
                elif store.wants(block_hash):
                    blocks.append(cached)
                    hashes.append(block_hash)
            if blocks:
                self._write(store, blocks, hashes)
        self._ready += loading

    def commit_step(self, step: int) -> None:
        """Note that the plans up to this step are computed."""
        while self._planned and self._planned[0][0] <= step:
            self._ready.append(self._planned.popleft()[1])

    def _hashed(self, node: int, parent: Parent, token_ids: tuple[int, ...]) -> CachedBlock | None:
        """Hash a new node; return its block. None: it has a hash already, or its chain is not stored."""
        before = self._hashes.get(parent) if isinstance(parent, int) else parent
        if self._store is None or before is None or node in self._hashes:
            return None
        block_hash = self._store.name(before, token_ids)
        if block_hash is None:
            return None
        self._hashes[node] = block_hash
        return self._prefix.at_node(node)

    def _write(self, store: KVStore, cached: list[CachedBlock], hashes: list[bytes]) -> None:
        blocks = tuple(one.block for one in cached if one.block is not None)
        numbers = tuple(int.from_bytes(one) for one in hashes)
        self._in_flight += len(blocks)
        self._transfers.begin("store", store.tier, blocks, numbers, partial(self._written, len(blocks)))

    def _written(self, blocks: int, done: bool) -> None:
        self._in_flight -= blocks
        self.num_stored += blocks * done
        self.num_failed += blocks * (not done)


class PrefixLoader:
    """Loads what follows a waiting sequence's cached blocks in a tier or with a peer. A sequence loads once each time
    that it waits: blocks that were loaded and evicted again are computed."""

    def __init__(
        self,
        pool: BlockPool,
        prefix: PrefixCache,
        sharing: PrefixSharing,
        transfers: Transfers,
        tiers: KVTiers,
        block_size: int,
        writer: OffloadWriter,
    ):
        """Create it without loads. writer: hashes what was loaded, since the blocks behind it may be written."""
        # Blocks since the start. asked: looked up in sources; declined: cheaper to compute.
        self.num_asked = self.num_loaded = self.num_failed = self.num_declined = 0
        self._pool, self._prefix, self._sharing, self._transfers = pool, prefix, sharing, transfers
        self._tiers, self._size, self._writer = tiers, block_size, writer
        self._in_flight: dict[int, float] = {}  # transfer id → when it began
        self._ended: list[tuple[int, str, int, bool]] = []  # id, tier, blocks, success
        self._matches: dict[int, tuple[int, KVMatch | None]] = {}  # by number: chain length, what follows it
        self._ahead: dict[int, int] = {}  # by number of a sequence that still waits: blocks loaded for it

    def loading(self, sequence: Sequence) -> int:
        """Return the id of the transfer in flight that loads the last cached block of a waiting sequence; 0: none."""
        blocks = self._sharing.find(sequence).chain.blocks
        return blocks[-1].loading if blocks and blocks[-1].loading in self._in_flight else 0

    def start_load(self, sequence: Sequence, spare: int, now: float, is_due: bool = True) -> int:
        """Begin to load the blocks that follow a waiting sequence's cached ones, if that is worth it.

        Args:
            sequence: A sequence for which `loading` is 0.
            spare: Blocks that must stay available.
            now: Time in seconds.
            is_due: Whether the sequence is next in its queue.

        Returns:
            The transfer's id; 0 where none began.
        """
        lookup = self._sharing.find(sequence)
        if lookup.has_loaded:
            return 0
        match = self._match(sequence, lookup)
        if match is None:
            lookup.has_loaded = True
            return 0
        if not self._has_room(lookup, match, spare, is_due):
            return 0
        lookup.has_loaded = True
        return self._begin(sequence, lookup, match, now)

    def forget(self, sequence: Sequence) -> None:
        """Forget a sequence that no longer waits."""
        self._ahead.pop(sequence.number, None)
        self._matches.pop(sequence.number, None)

    def drain_loads(self, now: float) -> list[int]:
        """Return the ids of the loads that have ended since the last call."""
        ended, self._ended = self._ended, []
        for transfer_id, tier, blocks, done in ended:
            began = self._in_flight.pop(transfer_id)
            if done:
                self._tiers.cost.observe(tier, blocks, now - began)
        return [transfer_id for transfer_id, *_ in ended]

    def _match(self, sequence: Sequence, lookup: Lookup) -> KVMatch | None:
        """Return the longest match of any source, if loading it is worth it."""
        root, limit = self._sharing.root(sequence), sequence.max_cached_tokens // self._size
        held = len(lookup.chain.blocks)
        if not isinstance(root, SharedRoot) or held >= limit:
            return None
        before, match = self._matches.get(sequence.number, (-1, None))
        if before != held:
            tokens = sequence.token_slice(0, limit * self._size)
            answers = (source.match(sequence.request, root, tokens, held) for source in self._tiers.sources)
            match = max((one for one in answers if one is not None), key=_length, default=None)
            self._matches[sequence.number] = held, match
            self.num_asked += limit - held
        if match is None or not match.remote_blocks:
            return None
        blocks = len(match.remote_blocks)
        if blocks > limit - held:
            raise RuntimeError(
                f"{match.tier} has {counted(blocks, 'block')} behind {held}, but at most {limit} can be used"
            )
        choose_load = self._tiers.cost.choose_load
        if match.always or choose_load(match.tier, blocks, held * self._size, blocks * self._size):
            return match
        self.num_declined += blocks
        return None

    def _has_room(self, lookup: Lookup, match: KVMatch, spare: int, is_due: bool) -> bool:
        """Return whether the sequence could be admitted behind the match, and not too many blocks are loaded for other
        waiting sequences, which would be evicted for it. A peer's blocks for the next sequence are always loaded."""
        blocks = len(match.remote_blocks)
        is_much = sum(self._ahead.values()) + blocks > MAX_AHEAD_SHARE * self._pool.num_blocks
        if is_much and self._ahead and not (match.always and is_due):
            return False
        found = self._pool.count_evictable(cached.block for cached in lookup.chain.blocks)
        return self._pool.available - found - blocks >= spare

    def _begin(self, sequence: Sequence, lookup: Lookup, match: KVMatch, now: float) -> int:
        chain, size = lookup.chain.blocks, self._size
        before = [cached.block for cached in chain if cached.block is not None]
        for block in before:  # or the allocation might evict them
            self._pool.acquire(block)
        blocks = self._pool.allocate(len(match.remote_blocks))
        node = chain[-1].node if chain else self._sharing.root(sequence)
        loaded: list[CachedBlock] = []
        for index, block in enumerate(blocks, len(chain)):
            node = self._prefix.publish(node, sequence.token_slice(index * size, (index + 1) * size), block)
            loaded.append(self._prefix.at_block(block))
        on_end = partial(self._loaded, match.tier, loaded)
        transfer_id = self._transfers.begin(match.kind, match.tier, blocks, match.remote_blocks, on_end)
        for cached in loaded:
            cached.loading = transfer_id
        self._pool.release(reversed((*before, *blocks)))  # the transfer has references of its own
        self._in_flight[transfer_id] = now
        self._ahead[sequence.number] = len(blocks)
        return transfer_id

    def _loaded(self, tier: str, blocks: list[CachedBlock], done: bool) -> None:
        self._ended.append((blocks[0].loading, tier, len(blocks), done))
        self.num_loaded += len(blocks) * done
        self.num_failed += len(blocks) * (not done)
        for cached in blocks:
            cached.loading = 0
            if cached.lost:
                continue
            if done:
                self._writer.add_loaded(cached)
            else:
                self._prefix.drop(cached)


def _length(match: KVMatch) -> int:
    return len(match.remote_blocks)
