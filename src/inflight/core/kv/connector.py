"""The KV connector: loads prefixes of waiting sequences from tiers and peers.

A unit is a block of a KV group, or a checkpoint of the recurrent state at a block's end. Blocks that are loaded are
allocated and published at once, marked as loading; a checkpoint is found once it is loaded. Only their transfer holds
them: a waiting sequence holds no block, so that waiting cannot deadlock. When the transfer has ended they are cached
like all others; if it failed they are dropped and computed. `RestoreCost` chooses between loading and computing.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from msgspec import Struct

from inflight.core.estimation.latency import LatencyModel, RestoreCost
from inflight.core.kv.block_pool import BlockPool
from inflight.core.kv.offload_writer import OffloadWriter
from inflight.core.kv.prefix_cache import CachedBlock, PrefixCache
from inflight.core.kv.prefix_sharing import Lookup, PrefixSharing
from inflight.core.kv.state_checkpoints import CheckpointSlots
from inflight.core.kv.transfers import Transfers
from inflight.core.sequence import Sequence
from inflight.core.types.kv_blocks import KVChain, KVSource, KVStore, SharedRoot, block_hash, group_hash
from inflight.core.types.plan import Capacity
from inflight.core.types.sampling import Adapter

MAX_AHEAD_SHARE = 0.5  # of the pool, loaded for sequences that still wait

Fingerprint = Callable[[Adapter | None], bytes]  # of the model, how it computes, and an adapter's files


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


class PrefixMatch(Struct, frozen=True):
    """Prefix of a waiting sequence that cache and source can serve together.

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
        transfer_id = self._begin(sequence, lookup, match, missing, now)
        if not transfer_id:  # the chain is shorter now, and more of it missing
            lookup.has_loaded = False
            return self.start_load(sequence, spare, now, is_due)
        return transfer_id

    def forget(self, sequence: Sequence) -> None:
        """Forget a sequence that no longer waits, and the chain that was found for it."""
        self._sharing.forget(sequence)
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
            match = max((one for one in found if one.length > hits), key=lambda one: one.length, default=None)
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
        """Begin the load of what is missing for a match; return the transfer's id, 0 where the chain is lost."""
        chain, size, source = lookup.chain.blocks, self._size, match.chain
        before = self._sharing.device_blocks(chain, match.length)
        for block in before:  # or the allocation might evict them
            self._pool.acquire(block)
        num_blocks = sum(group != self._state_group for _, group in missing)
        blocks = self._pool.allocate(num_blocks)
        if any(one.lost for one in chain[: match.length]):  # on a full host: what was evicted to it took their room
            self._pool.release(reversed((*before, *blocks)))
            return 0
        numbers = tuple(match.number(index, group) for index, group in missing)
        load = _Load(source.tier, now, self._moved(missing), [], 0)
        if missing[-1][1] == self._state_group:
            load.slot = self._slots.take_to_load()
            assert load.slot is not None, "there is room"
            missing = missing[:-1]
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
            self._writer.add_loaded_checkpoint(load.end)
