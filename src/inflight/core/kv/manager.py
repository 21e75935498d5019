"""The KV cache manager: the façade through which the scheduler allocates, shares, offloads and frees KV memory.

Other packages call nothing behind it. The manager decides neither who is admitted nor who is preempted.
"""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Sequence as Sequences

from msgspec import Struct

from inflight.core.kv.block_pool import BlockPool
from inflight.core.kv.block_tables import BlockTables
from inflight.core.kv.cache_journal import CacheJournal
from inflight.core.kv.handing_over import HandingOver
from inflight.core.kv.prefix_cache import CachedBlock, PrefixCache
from inflight.core.kv.prefix_loader import LoaderCounts, PrefixLoader
from inflight.core.kv.prefix_sharing import Lookup, PrefixSharing
from inflight.core.kv.session_eviction import SessionEviction
from inflight.core.kv.sessions import SessionMatcher, SessionTable
from inflight.core.kv.snapshot_spacing import SnapshotSpacing
from inflight.core.kv.state_snapshots import StateSnapshots
from inflight.core.kv.swap_space import SwapSpace
from inflight.core.kv.table_layout import Allocation, TableLayout
from inflight.core.kv.tiers import NO_TIERS, BlockTiers
from inflight.core.kv.transfers import Transfers
from inflight.core.kv.write_behind import WriteBehind, WriteCounts
from inflight.core.sequence import Sequence
from inflight.core.types.kv_transfer import TierStats
from inflight.core.types.plan import HOST, Capacity, Chunk, EarlySend, Transfer
from inflight.counted import UNBOUNDED


class HostDump(Struct, frozen=True):
    """Host blocks at one moment. free: without content. wanted: with content for preempted sequences, and the numbers
    of these. moving: of transfers in flight. All others are cached."""

    num_blocks: int
    free: tuple[int, ...]
    wanted: tuple[tuple[int, tuple[int, ...]], ...]
    moving: tuple[int, ...]


class KVCacheDump(Struct, frozen=True):
    """Blocks at one moment. held, free, held_host: counts; the remaining blocks are evictable. ref_counts: of each
    block. evictable: in order of eviction. moving: of transfers in flight."""

    held: int
    free: int
    held_host: int
    ref_counts: tuple[int, ...] = ()
    evictable: tuple[int, ...] = ()
    moving: tuple[int, ...] = ()
    host: HostDump | None = None


class KVCacheStats(Struct, frozen=True):
    """Counts at one moment.

    Attributes:
        held_blocks: Blocks of sequences and transfers; held + free + evictable blocks are all blocks.
        free_blocks: Blocks without content.
        evictable_blocks: Cached blocks that no sequence holds.
        held_slots: Token slots of the held blocks.
        used_slots: Token slots with computed keys and values; shared blocks count once.
        held_host_blocks: Host blocks with content, or of a transfer in flight.
        swapped_sequences: Preempted sequences whose content is kept.
        used_checkpoints: Slots of state checkpoints that are not free.
        checkpoint_hits: Sequences that began from a checkpoint, since the engine started.
        checkpoint_missed_tokens: Tokens computed again for want of a checkpoint, since the engine started.
        tiers: Transfers with tiers and peers; None: there are neither.
    """

    held_blocks: int
    free_blocks: int
    evictable_blocks: int
    held_slots: int
    used_slots: int
    held_host_blocks: int
    swapped_sequences: int
    used_checkpoints: int
    checkpoint_hits: int
    checkpoint_missed_tokens: int
    tiers: TierStats | None


class _Needed(Struct):
    """What a sequence's admission takes. found: of each group, what its table begins with: cached blocks, and None for
    those behind its window. fresh: blocks of each table beyond these."""

    found: list[list[CachedBlock | None]]
    fresh: list[int]

    @property
    def places(self) -> list[CachedBlock]:
        return [place for table in self.found for place in table if place is not None]


class KVCacheManager:
    def __init__(
        self,
        capacity: Capacity,
        prefix_caching: bool,
        allocation: Allocation = "paged",
        longest_chunk: int = UNBOUNDED,
        spacing: SnapshotSpacing | None = None,
        journal: CacheJournal | None = None,
        tiers: BlockTiers = NO_TIERS,
        host_is_tier: bool = False,
        sessions: SessionTable | None = None,
    ):
        """longest_chunk: tokens of one sequence that a step computes at most. spacing: of snapshots of recurrent state,
        where the model has any. journal: of what changes in the prefix cache, where somebody asks. tiers: beyond the
        device and its host. host_is_tier: what nobody wants is kept on the host, too. sessions: by whose worth blocks
        are evicted; None: least recently released first. Raises ValueError where tiers cannot hold all that a sequence
        goes on behind."""
        self._layout = TableLayout(capacity, allocation, longest_chunk)
        self.block_size = capacity.block_size
        self.has_windows = self._layout.has_windows
        self.has_state = capacity.state_snapshots > 0
        self._capacity = capacity
        self.encoder_only = capacity.encoder_only
        self.num_blocks = capacity.num_blocks
        self.max_tokens = self._layout.max_sequence_tokens  # of one sequence
        self.shortage = self._layout.shortage
        self._prefix_caching = prefix_caching and not capacity.encoder_only  # what blocks held is gone with their step
        self._spacing = spacing or SnapshotSpacing()
        self._journal = journal
        self._sessions = sessions
        self._host_is_tier = host_is_tier and self._prefix_caching
        self._tiers = tiers if self._prefix_caching else NO_TIERS
        if self._tiers and (self.has_windows or self.has_state):
            raise ValueError(
                f"tiers and peers bring blocks of one KV group, and this model has {len(capacity.windows)} under the "
                f"windows {capacity.windows} and {capacity.state_snapshots} snapshots of recurrent state; leave them "
                "out"
            )
        self.has_sources = bool(self._tiers.sources)
        self.has_exporter = self._tiers.identity is not None
        self.reset()

    def reset(self) -> None:
        """Free every block and forget all content."""
        capacity, tiers = self._capacity, self._tiers
        self._states = StateSnapshots(capacity.state_snapshots, self.block_size, self._spacing)
        self._prefix = PrefixCache(self.block_size, on_drop=self._dropped, journal=self._journal)
        self._prefix.clear()  # tells those who mirror the cache
        self._matcher: SessionMatcher | None = None
        device_order: SessionEviction | None = None
        host_order: SessionEviction | None = None
        if self._sessions is not None:
            self._sessions.begin_anew()
            device_order, host_order = SessionEviction(self._sessions), SessionEviction(self._sessions)
            self._matcher = SessionMatcher(self._sessions, device_order, host_order, self.block_size)
        self._pool = BlockPool(capacity.num_blocks, lambda block: self._swap.evicted(block), device_order)
        keeps = self._prefix.__contains__
        self._transfers = Transfers(self._pool, keeps, capacity.asynchronous_transfers)
        parts = (self._prefix, self._pool, self._transfers)
        self._swap = SwapSpace(capacity.host_blocks, *parts, self._host_is_tier, host_order)
        self._tables = BlockTables(self._layout, self._pool, self._prefix, self._swap)
        states = self._states if self.has_state else None
        self._writes = (
            None if tiers.sink is None else WriteBehind(self._pool, self._prefix, self._transfers, tiers.sink)
        )
        self._sharing = PrefixSharing(
            self._layout, self._pool, self._prefix, states, self._prefix_caching, self._writes
        )
        self._exporter: HandingOver | None = None
        if tiers.identity is not None:
            self._exporter = HandingOver(self._pool, keeps, self._transfers, tiers.identity, self.block_size)
        self._loader: PrefixLoader | None = None
        if tiers.sources:
            shared = (self._pool, self._prefix, self._sharing, self._transfers)
            self._loader = PrefixLoader(*shared, tiers.sources, tiers.worth, self.block_size, self._writes)
        self._bind()

    def _bind(self) -> None:
        """Offer what one part does alone, without a call in between: some of it is called for every row of a step."""
        # Block tables of running sequences.
        self.blocks_of = self._tables.blocks_of
        self.num_missing_blocks = self._tables.num_missing_blocks
        self.draft_room = self._tables.draft_room
        self.fewest_victims = self._tables.fewest_victims
        self.allocate = self._tables.allocate
        self.new_blocks = self._tables.new_blocks
        self.slide_windows = self._tables.slide_windows
        # Prefixes shared with other sequences, and checkpoints of recurrent state.
        self.publish = self._sharing.publish
        self.free_request = self._sharing.free_request
        self.checkpoint_is_coming = self._sharing.checkpoint_is_coming
        self.wait_for_checkpoint = self._sharing.wait_for_checkpoint
        self.take_checkpoints = self._states.take_checkpoints
        self.begin_from_checkpoint = self._states.begin_from_checkpoint
        self.publish_checkpoints = self._states.publish_checkpoints
        # Transfers.
        self.new_transfer_id = self._transfers.new_transfer_id
        self.end_transfer = self._transfers.end_transfer

    # -- waiting sequences --------------------------------------------------------------------------------------
    def can_admit(self, sequence: Sequence, spare: int, without: Sequences[Sequence] = ()) -> bool:
        """Return whether `admit` has the blocks that it needs now, or once the sequences `without` are preempted."""
        lookup = self._sharing.find(sequence)
        if without:
            alone = self._tables.alone(without)
            if not self._has_room(sequence, lookup, spare - len(alone)):
                return False
            # Blocks that the sequence finds in the cache are held afterwards: their preemption frees nothing for it.
            places = self._needed(sequence, lookup).places
            spare -= len(alone) - sum(place.block in alone for place in places)
        return self._has_room(sequence, lookup, spare)

    def blocks_to_admit(self, sequence: Sequence) -> int:
        """Return how many of the available blocks `admit` takes."""
        return self._taken(self._needed(sequence, self._sharing.find(sequence)))

    def num_cached_tokens(self, sequence: Sequence) -> int:
        """Return the leading tokens of a waiting sequence that are cached now."""
        return len(self._sharing.hits(self._sharing.find(sequence))) * self.block_size

    def admit(self, sequence: Sequence, spare: int, to_the_end: bool = False) -> bool:
        """Give a waiting sequence blocks for all its known tokens, cached ones first.

        Sets `num_computed` to the tokens that are cached or come with the request. At least one token is left to
        compute, since the next is sampled from it, and all tokens whose positions are to be scored.

        Args:
            sequence: A sequence without blocks.
            spare: Blocks that must stay available.
            to_the_end: Reserve blocks for all tokens that the sequence may ever have, so that it is never preempted.

        Returns:
            False, and no change, where blocks are missing or their content must be stored first; the store has begun
            then.
        """
        lookup = self._sharing.find(sequence)
        if self._swap.storing or not self._has_room(sequence, lookup, spare, to_the_end):
            return False
        hits, needed = self._sharing.hits(lookup), self._needed(sequence, lookup, to_the_end)
        places = needed.places
        offloaded = tuple(place for place in places if place.block is None)
        if not self._swap.clears(sum(needed.fresh) + len(offloaded), [place.block for place in places]):
            return False
        self._waits_no_longer(sequence)
        if self._matcher is not None:
            self._matcher.admit(sequence, [(place.block, place.host_block) for place in hits])
        sequence.num_computed = max(len(hits) * self.block_size, self._layout.handed(sequence))
        if self.has_state:  # before blocks are evicted, which may be those that it is beside
            self._states.admit(sequence, lookup.chain.places, len(hits))
        self._acquire(sequence, places, offloaded)
        self._tables.begin(sequence, needed.found, needed.fresh, self._layout.size(sequence, to_the_end))
        sequence.published = len(hits)
        sequence.node = hits[-1].node if hits else self._sharing.root(sequence)
        return True

    def loading(self, sequence: Sequence) -> int:
        """Return the id of the transfer in flight that loads more of a waiting sequence's prefix; 0: none."""
        return 0 if self._loader is None else self._loader.loading(sequence)

    def start_load(self, sequence: Sequence, spare: int, now: float, is_due: bool = True) -> int:
        """Begin to load more of a waiting sequence's prefix from a tier or a peer, if that is worth it.

        Args:
            sequence: A sequence for which `loading` is 0.
            spare: Blocks that must stay available.
            now: Time in seconds.
            is_due: Whether the sequence is next in its queue.

        Returns:
            The transfer's id; 0 where none began.
        """
        return 0 if self._loader is None else self._loader.start_load(sequence, spare, now, is_due)

    def drain_loads(self, now: float) -> list[int]:
        """Return the ids of the loads that have ended since the last call."""
        return [] if self._loader is None else self._loader.drain_loads(now)

    # -- sequences that leave -----------------------------------------------------------------------------------
    def resumable_tokens(self, sequence: Sequence) -> int:
        """Return the tokens that a running sequence need not compute again after a preemption, if all stay cached."""
        return sequence.num_computed if sequence.state is None else sequence.state.newest

    def preempt(self, sequence: Sequence, swap: bool) -> None:
        """Free the blocks of a sequence that will come back. Their content stays cached until the blocks are reused;
        with `swap`, the part that the sequence can resume from moves to the host then."""
        if swap:
            most = min(sequence.published, self.resumable_tokens(sequence) // self.block_size)
            published = (block for table in sequence.block_tables for block in table[:most])
            places = (self._prefix.at(block) for block in published if block in self._prefix)
            sequence.offloaded = self._swap.want(places, sequence.number)
        self._release(sequence, comes_back=True)

    def free(self, sequence: Sequence) -> None:
        """Free all that an ended sequence holds, whether it ran or waited."""
        if self._exporter is not None:
            self._exporter.ended(sequence)
        self._waits_no_longer(sequence)
        if self._matcher is not None:
            self._matcher.end(sequence)
        self._swap.give_up(sequence.offloaded, sequence.number, sequence.session)
        sequence.offloaded = ()
        self._release(sequence)

    def forget_all(self) -> None:
        """Drop all cached content, which a failed step may have left half-written."""
        self._swap.forget_all()
        self._pool.evict_all()
        self._prefix.clear()
        self._states.slots.drop_all()
        if self._writes is not None:
            self._writes.forget_all()

    # -- steps --------------------------------------------------------------------------------------------------
    def begin_step(self, step: int) -> None:
        """Begin the plan of a step: ask for the transfers that store and export what earlier steps computed."""
        self._swap.store_ahead()
        if self._writes is not None:
            self._writes.begin(step)
        if self._exporter is not None:
            self._exporter.begin()

    def finish_plan(self) -> tuple[Transfer, ...]:
        """Complete the plan under construction; return its transfers, stores before loads."""
        self._states.publish_checkpoints()
        return self._transfers.drain()

    def early_sends(self, chunks: Sequences[Chunk], running: Iterable[Sequence]) -> tuple[EarlySend, ...]:
        """Return the blocks of these chunks that peers may read while the step computes them."""
        return () if self._exporter is None else self._exporter.computing(chunks, running)

    def chunk_computed(self, sequence: Sequence, end: int) -> None:
        """Note that a running sequence has keys and values for its first `end` tokens."""
        if self._exporter is not None:
            self._exporter.computed(sequence, end)

    def commit_step(self, step: int) -> None:
        """Note that all plans up to this step are computed."""
        if self._writes is not None:
            self._writes.committed(step)

    # -- counts -------------------------------------------------------------------------------------------------
    @property
    def num_free_blocks(self) -> int:
        """Blocks without content."""
        return self._pool.free

    @property
    def num_available_blocks(self) -> int:
        """Blocks that can be allocated: free and evictable ones."""
        return self._pool.available

    @property
    def is_storing(self) -> bool:
        """Whether a store in flight frees device blocks when it ends."""
        return self._swap.storing > 0

    @property
    def is_busy(self) -> bool:
        """Whether a transfer is in flight, or about to begin, but for exports that a peer has still to fetch."""
        waits = self._writes is not None and self._writes.waiting
        return self._transfers.goes_on or waits or (self._exporter is not None and self._exporter.waiting)

    @property
    def transfer_ids_out(self) -> tuple[int, ...]:
        """Ids of the transfers in flight."""
        return tuple(self._transfers.out)

    def stats(self, running: Sequences[Sequence]) -> KVCacheStats:
        """Count blocks, of which these running sequences hold some."""
        pool, swap, states = self._pool, self._swap, self._states
        # A block that several hold is full: each holder but one counts its tokens too often.
        moving = [block for transfer in self._transfers.out.values() for block in transfer.blocks]
        extra_holders = sum(len(self.blocks_of(one)) for one in running) - pool.held
        extra_holders += sum(pool.ref_count(block) == 1 for block in moving)
        return KVCacheStats(
            held_blocks=pool.held,
            free_blocks=pool.free,
            evictable_blocks=pool.evictable,
            held_slots=pool.held * self.block_size,
            used_slots=sum(map(self._tables.used_slots, running)) - extra_holders * self.block_size,
            held_host_blocks=swap.host_blocks - swap.free,
            swapped_sequences=swap.sequences,
            used_checkpoints=states.slots.used,
            checkpoint_hits=states.hits,
            checkpoint_missed_tokens=states.missed_tokens,
            tiers=self._tier_counts(),
        )

    def dump(self, blocks: bool) -> KVCacheDump:
        """Return the state of the blocks: of each one, or (not `blocks`) their counts alone."""
        pool, swap, out = self._pool, self._swap, self._transfers.out.values()
        counts = pool.held, pool.free, swap.host_blocks - swap.free
        if not blocks:
            return KVCacheDump(*counts)
        host: HostDump | None = None
        if swap.host_blocks:
            moving = tuple(block for one in out if one.tier == HOST for block in one.remote_blocks)
            host = HostDump(swap.host_blocks, swap.free_blocks(), swap.wanted_blocks(), moving)
        moving = tuple(block for one in out for block in one.blocks)
        return KVCacheDump(*counts, pool.ref_counts(), pool.evictable_blocks(), moving, host)

    # -- inside -------------------------------------------------------------------------------------------------
    def _tier_counts(self) -> TierStats | None:
        """Return None where there are no tiers."""
        if not self._tiers:
            return None
        loads = LoaderCounts() if self._loader is None else self._loader.counts
        writes = WriteCounts() if self._writes is None else self._writes.counts
        of_loads = loads.asked, loads.brought, loads.failed, loads.declined
        return TierStats(*of_loads, writes.stored, writes.failed, writes.missed)

    def _dropped(self, node: int) -> None:
        self._states.slots.drop(node)
        if self._writes is not None:
            self._writes.dropped(node)

    def _waits_no_longer(self, sequence: Sequence) -> None:
        self._sharing.forget(sequence)
        if self._loader is not None:
            self._loader.left(sequence)

    def _acquire(self, sequence: Sequence, places: list[CachedBlock], offloaded: tuple[CachedBlock, ...]) -> None:
        """It holds what it found; what of that is on the host is loaded into blocks of its own."""
        for place in places:
            if place.block is not None:
                self._pool.acquire(place.block)
        if offloaded:
            self._swap.hold(offloaded)
            sequence.timings.swapped_blocks += len(offloaded)
            self._swap.load(offloaded, self._pool.allocate(len(offloaded)))
        self._swap.give_up(sequence.offloaded, sequence.number, sequence.session)
        sequence.offloaded = ()
        sequence.waiting_for_kv = {place.loading for place in places if place.loading}

    def _release(self, sequence: Sequence, comes_back: bool = False) -> None:
        if sequence.state is not None:
            self._states.leave(sequence, comes_back)
        self._tables.release(sequence)
        sequence.published = 0
        sequence.node = None
        sequence.num_computed = 0
        sequence.waiting_for_kv = set()

    def _needed(self, sequence: Sequence, lookup: Lookup, to_the_end: bool = False) -> _Needed:
        hits, size = self._sharing.hits(lookup), self._layout.size(sequence, to_the_end)
        if not self.has_windows:
            return _Needed([list(hits)], [size - len(hits)])
        needed, computed = _Needed([], []), max(len(hits) * self.block_size, self._layout.handed(sequence))
        for group in range(len(self._capacity.windows)):
            first = self._layout.first(group, computed)
            first = first if group else min(first, len(hits))  # what follows is chained to them
            found: list[CachedBlock | None] = [None] * first
            for place in hits[first:]:
                found.append(self._prefix.beside(place.node, group) if group else place)
            needed.found.append(found)
            needed.fresh.append(max(0, self._layout.end(group, first, size) - len(found)))
        return needed

    def _taken(self, needed: _Needed) -> int:
        """Blocks that are available, and would not be afterwards."""
        blocks = [place.block for place in needed.places]
        return sum(needed.fresh) + blocks.count(None) + self._pool.count_evictable(blocks)

    def _has_room(self, sequence: Sequence, lookup: Lookup, spare: int, to_the_end: bool = False) -> bool:
        """Whether `spare` blocks would stay available. Nothing but blocks that are given up, and a longer chain, makes
        more room: without these the answer is no as before, and the chain's blocks are not counted again."""
        length = len(lookup.chain.places)
        since = self._pool.given_up - lookup.given_up
        if length == lookup.length and not to_the_end and lookup.room + since < spare:
            return False
        room = self._pool.available - self._taken(self._needed(sequence, lookup, to_the_end))
        if not (to_the_end or self.has_windows or self.has_state):  # what is found beside a chain comes and goes
            lookup.room, lookup.given_up, lookup.length = room, self._pool.given_up, length
        return room >= spare
