"""The KV connector: loads prefixes of waiting sequences from tiers and peers, and writes cached blocks to a tier.

A unit is a block of a KV group, or a checkpoint of the recurrent state at a block's end. Blocks that are loaded are
allocated and published at once, marked as loading; a checkpoint is found once it is loaded. Only their transfer holds
them: a waiting sequence holds no block, so that waiting cannot deadlock. When the transfer has ended they are cached
like all others; if it failed they are dropped and computed. `RestoreCost` chooses between loading and computing.

A unit may be written once the step that computes it is committed; what a failed step leaves must never be stored.
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
from inflight.core.kv.state_checkpoints import CheckpointSlots
from inflight.core.kv.transfers import Transfers
from inflight.core.sequence import Sequence
from inflight.core.types.kv_blocks import KVChain, KVSource, KVStore, SharedRoot, block_hash, group_hash
from inflight.core.types.plan import Capacity
from inflight.core.types.sampling import Adapter

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
    """Writes cached units to a tier beside the steps. What is evicted before its turn is not written."""

    def __init__(
        self,
        pool: BlockPool,
        prefix: PrefixCache,
        slots: CheckpointSlots,
        transfers: Transfers,
        store: KVStore | None,
        state_group: int = 1,
    ):
        """Create it without units.

        Args:
            pool: Of blocks.
            prefix: Of their content.
            slots: Of checkpoints.
            transfers: Copies the content.
            store: Where it is written; None: nowhere.
            state_group: Number of the recurrent state among groups, as in `Transfer`.
        """
        self.num_stored = self.num_failed = self.num_missed = 0  # units since the start; missed: evicted before
        self._prefix, self._slots, self._transfers, self._store = prefix, slots, transfers, store
        self._state_group = state_group
        self._max_in_flight = max(1, pool.num_blocks // WRITE_DIVISOR)
        self._hashes: dict[int, bytes] = {}  # of cached nodes
        # A checkpoint is named by the node of the block at whose end it is.
        self._planned: deque[tuple[int, CachedBlock | int]] = deque()  # with the step that computes each, in order
        self._ready: deque[CachedBlock | int] = deque()
        self._step = -1  # planned last
        self._in_flight = 0  # units

    @property
    def is_waiting(self) -> bool:
        """Whether a unit is ready and not being written."""
        return bool(self._ready)

    def add_planned(self, nodes: list[int], parent: Parent, token_ids: tuple[int, ...]) -> None:
        """Add a block of each group that a plan computes: the one under construction, or one in flight. A block that is
        loading is added when its load has ended (`add_loaded`).

        Args:
            nodes: Of the same tokens, the first group's first.
            parent: Of the first group's.
            token_ids: Tokens of the block.
        """
        before = self._hashes.get(parent) if isinstance(parent, int) else parent
        self._add_planned(nodes[0], before, token_ids)
        for node in nodes[1:]:
            self._add_planned(node, self._hashes.get(nodes[0]))

    def add_checkpoint(self, node: int) -> None:
        """Add the checkpoint at a block's end, which a plan writes: the one under construction, or one before."""
        if node in self._hashes:
            self._planned.append((self._step, node))

    def add_loaded(self, cached: CachedBlock) -> None:
        """Add a block whose content was loaded."""
        parent = cached.key[0]
        before = self._hashes.get(parent) if isinstance(parent, int) else cast(SharedRoot, parent)
        self._hash(cached.node, before, () if cached.group else cached.token_ids)
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
        """Begin to write ready units with the plan of this step."""
        self._step = step
        loading: list[CachedBlock] = []
        store = self._store
        while store is not None and self._ready and self._in_flight < self._max_in_flight:
            units = self._next_units(store, loading)
            if units:
                self._write(store, units)
        self._ready += loading

    def commit_step(self, step: int) -> None:
        """Note that the plans up to this step are computed."""
        while self._planned and self._planned[0][0] <= step:
            self._ready.append(self._planned.popleft()[1])

    def _add_planned(self, node: int, before: bytes | SharedRoot | None, token_ids: tuple[int, ...] = ()) -> None:
        if self._hash(node, before, token_ids):
            cached = self._prefix.at_node(node)
            if cached is not None and not cached.loading:
                self._planned.append((self._step, cached))

    def _hash(self, node: int, before: bytes | SharedRoot | None, token_ids: tuple[int, ...]) -> bool:
        """Hash a new node; return False where it has a hash already, or its chain is not stored.

        Args:
            node: The node.
            before: Hash or root before it; of another group than the first, hash of the first group's block.
            token_ids: Tokens of a block of the first group; empty: it is of another group.
        """
        if self._store is None or before is None or node in self._hashes:
            return False
        if isinstance(before, SharedRoot):
            root = self._store.root(before)
            if root is None:
                return False
            before = root
        cached = None if token_ids else self._prefix.at_node(node)
        self._hashes[node] = block_hash(before, token_ids) if cached is None else group_hash(before, cached.group)
        return True

    def _next_units(self, store: KVStore, loading: list[CachedBlock]) -> list[tuple[int, int, bytes]]:
        """Take ready units for one transfer: (group, block, hash) of each. A checkpoint, which is large, goes alone.

        loading: Gets the blocks that cannot be written yet, since they are being loaded."""
        units: list[tuple[int, int, bytes]] = []
        while self._ready and len(units) < min(WRITE_BATCH, self._max_in_flight - self._in_flight):
            one = self._ready[0]
            if isinstance(one, int) and units:
                break
            self._ready.popleft()
            if isinstance(one, int):
                slot, first = self._slots.find(one), self._hashes.get(one)
                unit_hash = None if first is None else group_hash(first, self._state_group)
                group, block = self._state_group, slot
            else:
                group, block = one.group, one.block
                unit_hash = None if one.lost else self._hashes.get(one.node)
            if unit_hash is None or block is None:
                self.num_missed += 1
            elif not isinstance(one, int) and one.loading:  # it was on the host meanwhile
                loading.append(one)
            elif store.wants(int.from_bytes(unit_hash)):
                units.append((group, block, unit_hash))
                if isinstance(one, int):
                    break
        return units

    def _write(self, store: KVStore, units: list[tuple[int, int, bytes]]) -> None:
        groups, blocks, hashes = zip(*units, strict=True)
        numbers = tuple(int.from_bytes(one) for one in hashes)
        self._in_flight += len(units)
        self._transfers.begin("store", store.tier, blocks, numbers, partial(self._written, len(units)), groups)

    def _written(self, units: int, done: bool) -> None:
        self._in_flight -= units
        self.num_stored += units * done
        self.num_failed += units * (not done)


class PrefixMatch(Struct, frozen=True):
    """What a source adds to a waiting sequence's cached prefix.

    Attributes:
        chain: The source's blocks of the prompt.
        length: Blocks that the sequence can begin behind once the source's are loaded.
        hashes: Of the first group's blocks, as many.
    """

    chain: KVChain
    length: int
    hashes: list[bytes]

    def number(self, index: int, group: int) -> int:
        """Return the number that a group's unit has in the source."""
        first = self.hashes[index]
        return int.from_bytes(group_hash(first, group) if group else first)

    def has(self, index: int, group: int) -> bool:
        """Return whether the source has a group's unit."""
        return self.chain.has(index, group, self.number(index, group))


class _Load(Struct):
    """Load in flight.

    Attributes:
        tier: Where it loads from.
        began: Time in seconds.
        moved: Its size in blocks.
        blocks: Blocks that are loaded.
        end: Node of the last block of the prefix.
        slot: Of the checkpoint that is loaded; None: none is.
    """

    tier: str
    began: float
    moved: int
    blocks: list[CachedBlock]
    end: int
    slot: int | None = None
    transfer_id: int = 0
    done: bool = False


class PrefixLoader:
    """Loads what follows a waiting sequence's cached prefix in a tier or with a peer. A sequence loads once each time
    that it waits: units that were loaded and evicted again are computed."""

    def __init__(
        self,
        pool: BlockPool,
        prefix: PrefixCache,
        sharing: PrefixSharing,
        slots: CheckpointSlots,
        transfers: Transfers,
        tiers: KVTiers,
        capacity: Capacity,
        writer: OffloadWriter,
    ):
        """Create it without loads. writer: hashes what was loaded, since the blocks behind it may be written."""
        # Units since the start. asked: blocks looked up in sources; declined: cheaper to compute.
        self.num_asked = self.num_loaded = self.num_failed = self.num_declined = 0
        self._pool, self._prefix, self._sharing, self._transfers = pool, prefix, sharing, transfers
        self._slots, self._tiers, self._size, self._writer = slots, tiers, capacity.block_size, writer
        self._state_group, self._state_blocks = capacity.state_group, max(1, capacity.state_blocks)
        self._in_flight: dict[int, _Load] = {}  # by transfer id
        self._ended: list[_Load] = []
        self._matches: dict[int, tuple[tuple[int, int], PrefixMatch | None]] = {}  # by number: (chain, hits), match
        self._ahead: dict[int, int] = {}  # by number of a sequence that still waits: blocks loaded for it

    def loading(self, sequence: Sequence) -> int:
        """Return the id of the transfer in flight that a waiting sequence can begin behind; 0: none."""
        lookup = self._sharing.find(sequence)
        blocks = lookup.chain.blocks
        if not self._in_flight or not blocks:
            return 0
        if blocks[-1].loading in self._in_flight:
            return blocks[-1].loading
        if not self._sharing.has_groups:
            return 0
        ends = {load.end: transfer_id for transfer_id, load in self._in_flight.items()}
        beyond = blocks[len(self._sharing.hits(lookup)) :]
        return next((ends[one.node] for one in reversed(beyond) if one.node in ends), 0)

    def start_load(self, sequence: Sequence, spare: int, now: float, is_due: bool = True) -> int:
        """Begin to load what a waiting sequence's cached prefix lacks in a source, if that is worth it.

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
        missing = self._sharing.missing(lookup.chain.blocks, match.length)
        if not self._has_room(lookup, match, missing, spare, is_due):
            return 0
        lookup.has_loaded = True
        if self._sharing.has_groups and not all(match.has(*one) for one in missing):
            return 0  # what was cached when the match was found is evicted by now, and the source lacks it
        return self._begin(sequence, lookup, match, missing, now)

    def forget(self, sequence: Sequence) -> None:
        """Forget a sequence that no longer waits."""
        self._ahead.pop(sequence.number, None)
        self._matches.pop(sequence.number, None)

    def drain_loads(self, now: float) -> list[int]:
        """Return the ids of the loads that have ended since the last call."""
        ended, self._ended = self._ended, []
        for load in ended:
            del self._in_flight[load.transfer_id]
            if load.done:
                self._tiers.cost.observe(load.tier, load.moved, now - load.began)
        return [load.transfer_id for load in ended]

    def _match(self, sequence: Sequence, lookup: Lookup) -> PrefixMatch | None:
        """Return the longest match of any source, if loading it is worth it."""
        root, limit = self._sharing.root(sequence), sequence.max_cached_tokens // self._size
        chain = lookup.chain.blocks
        hits = len(self._sharing.hits(lookup))
        if not isinstance(root, SharedRoot) or hits >= limit:
            return None
        cached, match = self._matches.get(sequence.number, ((-1, -1), None))
        if cached != (len(chain), hits):
            offers = [source.chain(sequence.request, root) for source in self._tiers.sources]
            found = [self._extended(sequence, chain, offer, limit) for offer in offers if offer is not None]
            match = max((one for one in found if one.length > hits), key=_length, default=None)
            self._matches[sequence.number] = (len(chain), hits), match
            self.num_asked += limit - hits
        if match is None:
            return None
        moved, start = self._moved(self._sharing.missing(chain, match.length)), hits * self._size
        tokens = (match.length - hits) * self._size
        if match.chain.always or self._tiers.cost.choose_load(match.chain.tier, moved, start, tokens):
            return match
        self.num_declined += moved
        return None

    def _extended(self, sequence: Sequence, blocks: list[CachedBlock], chain: KVChain, limit: int) -> PrefixMatch:
        """Return the longest prefix that cache and source can serve together. blocks: the cached chain."""
        hashes: list[bytes] = []
        match, before = PrefixMatch(chain, 0, hashes), chain.root
        for index in range(limit):
            before = block_hash(before, sequence.token_slice(index * self._size, (index + 1) * self._size))
            if index >= len(blocks) and not chain.has(index, 0, int.from_bytes(before)):
                break
            hashes.append(before)
        if not self._sharing.has_groups:
            return PrefixMatch(chain, len(hashes), hashes)
        return PrefixMatch(chain, self._sharing.longest(blocks, len(hashes), match.has), hashes)

    def _moved(self, units: list[tuple[int, int]]) -> int:
        """Return the size of units in blocks."""
        states = sum(group == self._state_group for _, group in units)
        return len(units) + states * (self._state_blocks - 1)

    def _has_room(
        self, lookup: Lookup, match: PrefixMatch, missing: list[tuple[int, int]], spare: int, is_due: bool
    ) -> bool:
        """Return whether the sequence could be admitted behind the match, and not too many blocks are loaded for other
        waiting sequences, which would be evicted for it. A peer's blocks for the next sequence are always loaded."""
        blocks = sum(group != self._state_group for _, group in missing)
        is_much = sum(self._ahead.values()) + blocks > MAX_AHEAD_SHARE * self._pool.num_blocks
        if is_much and self._ahead and not (match.chain.always and is_due):
            return False
        if blocks < len(missing) and not self._slots.has_room:
            return False
        found = self._pool.count_evictable(self._sharing.device_blocks(lookup.chain.blocks, match.length))
        return self._pool.available - found - blocks >= spare

    def _begin(
        self, sequence: Sequence, lookup: Lookup, match: PrefixMatch, missing: list[tuple[int, int]], now: float
    ) -> int:
        chain, size, source = lookup.chain.blocks, self._size, match.chain
        before = self._sharing.device_blocks(chain, match.length)
        for block in before:  # or the allocation might evict them
            self._pool.acquire(block)
        numbers = tuple(match.number(index, group) for index, group in missing)
        load = _Load(source.tier, now, self._moved(missing), [], 0)
        if missing[-1][1] == self._state_group:
            load.slot = self._slots.take_to_load()
            missing = missing[:-1]
        blocks = self._pool.allocate(len(missing))
        nodes = [one.node for one in chain]
        root = self._sharing.root(sequence)
        for (index, group), block in zip(missing, blocks, strict=True):
            if group:
                self._prefix.publish_in_group(nodes[index], group, block)
            else:
                tokens = sequence.token_slice(index * size, (index + 1) * size)
                nodes.append(self._prefix.publish(nodes[-1] if nodes else root, tokens, block))
            load.blocks.append(self._prefix.at_block(block))
        load.end = nodes[match.length - 1]
        groups = tuple(group for _, group in missing)
        units = blocks
        if load.slot is not None:
            units, groups = (*blocks, load.slot), (*groups, self._state_group)
        on_end = partial(self._loaded, load)
        load.transfer_id = self._transfers.begin(source.kind, source.tier, units, numbers, on_end, groups)
        for cached in load.blocks:
            cached.loading = load.transfer_id
        self._pool.release(reversed((*before, *blocks)))  # the transfer has references of its own
        self._in_flight[load.transfer_id] = load
        self._ahead[sequence.number] = len(blocks)
        return load.transfer_id

    def _loaded(self, load: _Load, done: bool) -> None:
        load.done = done
        self._ended.append(load)
        units = len(load.blocks) + (load.slot is not None)
        self.num_loaded += units * done
        self.num_failed += units * (not done)
        for cached in load.blocks:
            cached.loading = 0
            if cached.lost:
                continue
            if done:
                self._writer.add_loaded(cached)
            else:
                self._prefix.drop(cached)
        if done and load.slot is not None and self._prefix.at_node(load.end) is not None:
            self._slots.publish_loaded(load.slot, load.end)


def _length(match: PrefixMatch) -> int:
    return match.length
