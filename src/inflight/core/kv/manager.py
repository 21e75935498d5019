"""The KV cache manager: the façade through which the scheduler allocates, shares, offloads and frees KV memory.

Other packages call nothing behind it. The manager decides neither who is admitted nor who is preempted.
"""

from __future__ import annotations

from collections.abc import Sequence as Sequences

from msgspec import Struct

from inflight.core.kv.acting_sessions import ActingSessions
from inflight.core.kv.block_pool import BlockPool
from inflight.core.kv.block_tables import Allocation, BlockTables, TableLayout
from inflight.core.kv.checkpoint_spacing import CheckpointSpacing
from inflight.core.kv.connector import NO_TIERS, KVTiers, PrefixLoader
from inflight.core.kv.host_tier import HostTier
from inflight.core.kv.kv_export import ExportLayout, KVExporter
from inflight.core.kv.offload_writer import OffloadWriter
from inflight.core.kv.prefix_cache import CachedBlock, KVEventQueue, PrefixCache
from inflight.core.kv.prefix_sharing import PrefixSharing
from inflight.core.kv.session_eviction import SessionEviction, SessionMatcher
from inflight.core.kv.sessions import SessionTable
from inflight.core.kv.state_checkpoints import CheckpointSlots, StateCheckpoints
from inflight.core.kv.transfers import Transfers
from inflight.core.sequence import Sequence
from inflight.core.types.kv_transfer import TierStats
from inflight.core.types.plan import Capacity, Transfer
from inflight.counted import UNBOUNDED


class HostDump(Struct, frozen=True):
    """Host blocks at one moment. free: without content. wanted: with content for preempted sequences, and the numbers
    of these. moving: of transfers in flight. The others are evictable."""

    num_blocks: int
    free: tuple[int, ...]
    wanted: tuple[tuple[int, tuple[int, ...]], ...]
    moving: tuple[int, ...]


class KVCacheDump(Struct, frozen=True):
    """Blocks at one moment. held, free, used_host: counts; the remaining blocks are evictable. ref_counts: of each
    block. evictable: in order of eviction. moving: of transfers in flight."""

    held: int
    free: int
    used_host: int
    ref_counts: tuple[int, ...] = ()
    evictable: tuple[int, ...] = ()
    moving: tuple[int, ...] = ()
    host: HostDump | None = None


class KVCacheStats(Struct, frozen=True):
    """Counts at one moment.

    Attributes:
        held_blocks: Blocks of sequences and transfers; held + free + evictable blocks are all blocks.
        free_blocks: Blocks without content.
        evictable_blocks: Blocks without a reference, in the order of eviction; their content may be findable.
        held_slots: Token slots of the held blocks.
        used_slots: Token slots with computed keys and values; shared blocks count once.
        used_host_blocks: Host blocks with content, or of a transfer in flight.
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
    used_host_blocks: int
    swapped_sequences: int
    used_checkpoints: int
    checkpoint_hits: int
    checkpoint_missed_tokens: int
    tiers: TierStats | None


class KVCacheManager:
    def __init__(
        self,
        capacity: Capacity,
        prefix_caching: bool,
        allocation: Allocation = "paged",
        max_chunk_tokens: int = UNBOUNDED,
        spacing: CheckpointSpacing | None = None,
        events: KVEventQueue | None = None,
        tiers: KVTiers = NO_TIERS,
        host_is_tier: bool = False,
        sessions: SessionTable | None = None,
        *,
        distinct_prompts: bool = False,
    ):
        """Create a manager of free blocks.

        Args:
            capacity: The executor's memory.
            prefix_caching: Whether requests share prefixes.
            allocation: When blocks are allocated.
            max_chunk_tokens: Tokens of one sequence that a step computes at most.
            spacing: Where checkpoints of recurrent state are taken.
            events: Queue of changes of the prefix cache; None: no observer.
            tiers: Tiers and peers beyond the device and its host.
            host_is_tier: Whether all evicted content moves to the host; otherwise only that of preempted sequences.
            sessions: For eviction by the value of sessions; None: least recently released first.
            distinct_prompts: As of `SchedulerConfig`.
        """
        self._layout = TableLayout(capacity, allocation, max_chunk_tokens)
        self.block_size = capacity.block_size
        self.num_blocks = capacity.num_blocks
        self.max_tokens = self._layout.max_sequence_tokens  # of one sequence
        self.has_windows, self.num_groups = self._layout.has_windows, len(capacity.windows)
        self.has_state = capacity.state_snapshots > 0
        self.stores_before_reuse = capacity.asynchronous_transfers and capacity.host_blocks > 0
        self.encoder_only = capacity.encoder_only
        self.shortage = self._layout.shortage
        self._capacity = capacity
        self._prefix_caching = prefix_caching and not self.encoder_only  # whose blocks are used within their step alone
        self._spacing = spacing or CheckpointSpacing()
        self._events = events
        self._sessions = sessions
        self._distinct_prompts = distinct_prompts
        self._host_is_tier = host_is_tier and self._prefix_caching
        self._tiers = tiers if self._prefix_caching else NO_TIERS
        self.has_sources = bool(self._tiers.sources)
        self.has_exporter = self._tiers.fingerprint is not None
        # Whether plans may have transfers or checkpoints, or acting sessions count; most engines have none.
        self._plans_transfers = bool(capacity.host_blocks or self._tiers or self.has_state or sessions is not None)
        self.reset()

    def reset(self) -> None:
        """Free every block and forget all content."""
        capacity, tiers = self._capacity, self._tiers
        slots, state_group = CheckpointSlots(capacity.state_snapshots), capacity.state_group
        self._prefix = PrefixCache(self.block_size, lambda node: self._writer.on_drop(node), self._events)
        self._prefix.clear()  # notifies observers
        self._matcher: SessionMatcher | None = None
        self._acting: ActingSessions | None = None
        device_order: SessionEviction | None = None
        host_order: SessionEviction | None = None
        if self._sessions is not None:
            self._sessions.reset()
            device_order, host_order = SessionEviction(self._sessions), SessionEviction(self._sessions)
            self._matcher = SessionMatcher(self._sessions, device_order, host_order, self.block_size)
            self._acting = ActingSessions(self._sessions, device_order, capacity.num_blocks)
        cached = self._prefix.blocks
        self._pool = BlockPool(capacity.num_blocks, lambda block: self._host.on_evict(block), cached, device_order)
        self._transfers = Transfers(self._pool, slots, state_group, capacity.asynchronous_transfers)
        parts = (self._prefix, self._pool, self._transfers)
        self._host = HostTier(capacity.host_blocks, *parts, self._host_is_tier, host_order)
        self._tables = BlockTables(self._layout, self._pool, self._host)
        self._writer = OffloadWriter(self._pool, self._prefix, slots, self._transfers, tiers.store, state_group)
        on_publish = None if tiers.store is None else self._writer.add_planned
        for_tier = () if tiers.store is None else (self._writer.postpone, self._writer.add_checkpoint)
        of_states = (slots, self.block_size, self._spacing, state_group, self.has_exporter)
        self._states = StateCheckpoints(*of_states, *for_tier)
        states = self._states if self.has_state else None
        content = (self._layout, self._pool, self._prefix, states, self._prefix_caching, on_publish)
        self._sharing = PrefixSharing(*content, distinct=self._distinct_prompts)
        shared = (self._pool, self._prefix, self._sharing, slots, self._transfers)
        self._loader = PrefixLoader(*shared, tiers, capacity, self._writer)
        exported = ExportLayout.of(capacity, self._spacing)
        self._exporter = KVExporter(self._pool, self._states, self._transfers, tiers.fingerprint, exported)
        self._bind()

    def _bind(self) -> None:
        """Bind the calls that one part answers alone. Some are made for every row of a step: no call is in between."""
        # Waiting sequences: cached prefixes, checkpoints, loads from tiers and peers.
        self.wait_for_checkpoint = self._sharing.wait_for_checkpoint
        self.hide_blocks = self._sharing.hide_blocks
        self.loading = self._loader.loading
        self.start_load = self._loader.start_load
        self.drain_loads = self._loader.drain_loads
        # Running sequences: block tables, published blocks, checkpoints of recurrent state.
        self.blocks_of = self._tables.blocks_of
        self.num_missing_blocks = self._tables.num_missing_blocks
        self.draft_room = self._tables.draft_room
        self.fewest_victims = self._tables.fewest_victims
        self.num_exclusive_blocks = self._tables.num_exclusive_blocks
        self.blocks_at = self._layout.blocks_at
        self.can_allocate = self._tables.can_allocate
        self.allocate = self._tables.allocate
        self.take_blocks = self._pool.allocate
        self.new_blocks = self._tables.new_blocks
        self.publish = self._sharing.publish_for_samples if self._sharing.defers else self._sharing.publish
        self.publish_deferred = self._sharing.publish
        self.defers_publishing = self._sharing.defers
        self.free_request = self._sharing.free_request
        self.take_checkpoints = self._states.take_checkpoints
        self.begin_from_checkpoint = self._states.begin_from_checkpoint
        self.publish_checkpoints = self._states.publish_checkpoints
        # Steps: transfers, exports to peers, writes to a tier.
        self.new_transfer_id = self._transfers.new_transfer_id
        self.end_transfer = self._transfers.end_transfer
        self.early_sends = self._exporter.early_sends
        self.chunk_computed = self._exporter.chunk_computed
        self.commit_step = self._writer.commit_step

    # -- waiting sequences --------------------------------------------------------------------------------------
    def can_admit(
        self, sequence: Sequence, spare: int, without: Sequences[Sequence] = (), at_once: bool = False
    ) -> bool:
        """Return whether `admit` has the blocks that it needs now, or once the sequences `without` are preempted.

        at_once: And the sequence can be computed then, since no content must be stored or loaded before.
        """
        lookup = self._sharing.find(sequence)
        if at_once:
            demand = self._sharing.demand(sequence, lookup)
            blocks = [one.block for one in demand.cached]
            num_on_host = blocks.count(None)
            if self.is_storing or any(one.loading for one in demand.cached):
                return False
            if num_on_host and self._transfers.asynchronous:
                return False
            if not self._host.has_room(sum(demand.fresh) + num_on_host, blocks):
                return False
        if without:
            freed = self._tables.exclusive_blocks(without)
            if not self._sharing.has_room(sequence, lookup, spare - len(freed)):
                return False
            # Blocks that the sequence finds in the cache are held afterwards: their preemption frees nothing for it.
            cached = self._sharing.demand(sequence, lookup).cached
            spare -= len(freed) - sum(one.block in freed for one in cached)
        return self._sharing.has_room(sequence, lookup, spare)

    def displaces_acting(self, sequence: Sequence, spare: int) -> bool:
        """Return whether `admit` has room only at the cost of blocks that are to be kept for acting sessions."""
        if self._acting is None or not self.can_admit(sequence, spare):
            return False
        kept = self._acting.kept_blocks(sequence)
        return kept > 0 and not self._sharing.has_room(sequence, self._sharing.find(sequence), spare + kept)

    def blocks_to_admit(self, sequence: Sequence) -> int:
        """Return how many of the available blocks `admit` takes."""
        return self._sharing.num_taken(self._sharing.demand(sequence, self._sharing.find(sequence)))

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
        sharing = self._sharing
        lookup = sharing.find(sequence)
        demand = None if self.is_storing else sharing.demand_with_room(sequence, lookup, spare, to_the_end)
        if demand is None:
            return False
        hits, cached = sharing.hits(lookup), demand.cached
        on_host = tuple([one for one in cached if one.block is None])
        if not self._host.make_room(sum(demand.fresh) + len(on_host), [one.block for one in cached]):
            return False
        self._loader.forget(sequence)
        if self._matcher is not None:
            self._matcher.admit(sequence, [(one.block, one.host_block) for one in hits])
        sequence.num_computed = max(len(hits) * self.block_size, self._layout.external_tokens(sequence))
        if self.has_state:  # before an allocation evicts blocks with checkpoints
            self._states.admit(sequence, lookup.chain.blocks, len(hits))
        self._acquire(sequence, cached, on_host)
        self._tables.begin(sequence, demand.found, demand.fresh, demand.size)
        sequence.num_published_blocks = len(hits)
        sequence.node = hits[-1].node if hits else sharing.root(sequence)
        return True

    def slide_windows(self, sequence: Sequence) -> None:
        """Free a running sequence's blocks that no query to come, and no peer, will see."""
        self._tables.slide_windows(sequence, self._exporter.first_query(sequence))

    # -- sequences that leave -----------------------------------------------------------------------------------
    def resumable_tokens(self, sequence: Sequence) -> int:
        """Return the tokens that a running sequence need not compute again after a preemption, if all stay cached."""
        return sequence.num_computed if sequence.state is None else sequence.state.newest

    def preempt(self, sequence: Sequence, swap: bool) -> None:
        """Free the blocks of a sequence that will come back. Their content stays cached until the blocks are reused;
        with `swap`, the part that the sequence can resume from moves to the host then."""
        if swap:
            limit = min(sequence.num_published_blocks, self.resumable_tokens(sequence) // self.block_size)
            blocks = (block for table in sequence.block_tables for block in table[:limit])
            kept = (self._prefix.at_block(block) for block in blocks if self._prefix.has_block(block))
            self._host.keep(sequence.number, kept)
        self._release(sequence, comes_back=True)

    def free(self, sequence: Sequence) -> None:
        """Free all that an ended sequence holds, whether it ran or waited."""
        self._exporter.end(sequence)
        self._loader.forget(sequence)
        if self._matcher is not None:
            self._matcher.end(sequence)
        self._host.release(sequence.number, sequence.session)
        self._release(sequence, retired=self._sharing.unpublished(sequence))

    def forget_all(self) -> None:
        """Drop all cached content, which a failed step may have left half-written."""
        self._host.forget_all()
        self._pool.discard_all()
        self._prefix.clear()
        self._states.slots.drop_all()
        self._writer.forget_all()

    # -- steps --------------------------------------------------------------------------------------------------
    def begin_step(self, step: int) -> None:
        """Begin the plan of a step: ask for the transfers that store and export what earlier steps computed."""
        if not self._plans_transfers:
            return
        self._host.store_ahead()
        self._writer.begin_step(step)
        self._exporter.begin_step()
        if self._acting is not None:
            self._acting.begin_plan()

    def finish_plan(self) -> tuple[Transfer, ...]:
        """Complete the plan under construction; return its transfers, stores before loads."""
        if not self._plans_transfers:
            return ()
        self._states.publish_checkpoints()
        return self._transfers.take_planned()

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
        return self._host.num_stores > 0

    @property
    def is_busy(self) -> bool:
        """Whether a transfer is in flight, or about to begin, but for exports that a peer has still to fetch."""
        if not self._plans_transfers:
            return False
        return self._transfers.is_busy or self._writer.is_waiting or self._exporter.is_waiting

    @property
    def transfer_ids_out(self) -> tuple[int, ...]:
        return tuple(self._transfers.in_flight)

    def stats(self, running: Sequences[Sequence]) -> KVCacheStats:
        """Count blocks, of which these running sequences hold some."""
        pool, states, loader, writer = self._pool, self._states, self._loader, self._writer
        # A block that several hold is full: each holder but one counts its tokens too often.
        extra_holders = sum(len(self.blocks_of(one)) for one in running) - pool.held
        extra_holders += sum(pool.ref_count(block) == 1 for block in self._transfers.blocks_in_flight())
        return KVCacheStats(
            held_blocks=pool.held,
            free_blocks=pool.free,
            evictable_blocks=pool.evictable,
            held_slots=pool.held * self.block_size,
            used_slots=sum(map(self._tables.used_slots, running)) - extra_holders * self.block_size,
            used_host_blocks=self._host.num_used,
            swapped_sequences=self._host.num_waiting,
            used_checkpoints=states.slots.used,
            checkpoint_hits=states.hits,
            checkpoint_missed_tokens=states.missed_tokens,
            tiers=TierStats(
                asked=loader.num_asked,
                brought=loader.num_loaded,
                failed=loader.num_failed,
                declined=loader.num_declined,
                stored=writer.num_stored,
                unstored=writer.num_failed,
                missed=writer.num_missed,
            )
            if self._tiers
            else None,
        )

    def dump(self, blocks: bool) -> KVCacheDump:
        """Return the state of the blocks: of each one, or (not `blocks`) their counts alone."""
        pool, host, host_dump = self._pool, self._host, None
        counts = pool.held, pool.free, host.num_used
        if not blocks:
            return KVCacheDump(*counts)
        if host.num_blocks:
            moving = self._transfers.host_blocks_in_flight()
            host_dump = HostDump(host.num_blocks, host.free_blocks(), host.waiters(), moving)
        moving = self._transfers.blocks_in_flight()
        return KVCacheDump(*counts, pool.ref_counts(), pool.evictable_blocks(), moving, host_dump)

    # -- internal -----------------------------------------------------------------------------------------------
    def _acquire(self, sequence: Sequence, cached: list[CachedBlock], on_host: tuple[CachedBlock, ...]) -> None:
        """Hold the cached blocks that a sequence found; load those on the host."""
        for one in cached:
            if one.block is not None:
                self._pool.acquire(one.block)
        if on_host:
            sequence.timings.swapped_blocks += len(on_host)
            self._host.load(on_host)
        self._host.release(sequence.number, sequence.session)
        sequence.waiting_for_kv = {one.loading for one in cached if one.loading}

    def _release(self, sequence: Sequence, comes_back: bool = False, retired: range = range(0)) -> None:
        if sequence.state is not None:
            self._states.leave(sequence, comes_back)
        self._tables.release(sequence, retired)
        sequence.num_published_blocks = 0
        sequence.node = None
        sequence.num_computed = 0
        sequence.waiting_for_kv = set()
