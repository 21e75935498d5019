"""KV memory as the scheduler sees it: sequences come, share, are preempted and end.

Joins the pool (who holds what), the prefix cache (what is where), the swap space (what is kept on the host), the
transfers in between, what is brought from tiers and peers (`loader`), what is held for peers (`handing`), and the
snapshots of recurrent state. What a
sequence holds while it runs is asked of `tables`, what it shares with others of `sharing`, how much there is for one at
most of `layout`. Decides nothing: who is admitted and who is preempted is the scheduler's.
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
from inflight.core.types.plan import Capacity, Chunk, EarlySend
from inflight.counted import UNBOUNDED


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
        self.layout = TableLayout(capacity, allocation, longest_chunk)
        self.block_size = capacity.block_size
        self.has_windows = self.layout.has_windows
        self.has_state = capacity.state_snapshots > 0
        self._capacity = capacity
        self.whole_texts = capacity.whole_texts
        self._prefix_caching = prefix_caching and not capacity.whole_texts  # what blocks held is gone with their step
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
        self.begin_anew()

    def begin_anew(self) -> None:
        """Every block is free, and nothing is known of what is in it."""
        capacity = self._capacity
        self.states = StateSnapshots(capacity.state_snapshots, self.block_size, self._spacing)
        self.prefix = PrefixCache(self.block_size, on_drop=self._dropped, journal=self._journal)
        self.prefix.clear()  # for those who mirror what was there before
        self.sessions: SessionMatcher | None = None
        device_order: SessionEviction | None = None
        host_order: SessionEviction | None = None
        if self._sessions is not None:
            self._sessions.begin_anew()
            device_order, host_order = SessionEviction(self._sessions), SessionEviction(self._sessions)
            self.sessions = SessionMatcher(self._sessions, device_order, host_order, self.block_size)
        self.pool = BlockPool(capacity.num_blocks, lambda block: self.swap.evicted(block), device_order)
        self.transfers = Transfers(self.pool, self.prefix.__contains__, capacity.asynchronous_transfers)
        parts = (self.prefix, self.pool, self.transfers)
        self.swap = SwapSpace(capacity.host_blocks, *parts, self._host_is_tier, host_order)
        self.tables = BlockTables(self.layout, self.pool, self.prefix, self.swap)
        states = self.states if self.has_state else None
        sink, sources = self._tiers.sink, self._tiers.sources
        self.writes = None if sink is None else WriteBehind(self.pool, self.prefix, self.transfers, sink)
        self.sharing = PrefixSharing(self.layout, self.pool, self.prefix, states, self._prefix_caching, self.writes)
        identity, keeps = self._tiers.identity, self.prefix.__contains__
        self.handing = None if identity is None else HandingOver(self.pool, keeps, self.transfers, identity)
        self.loader: PrefixLoader | None = None
        if sources:
            shared = (self.pool, self.prefix, self.sharing, self.transfers)
            self.loader = PrefixLoader(*shared, sources, self._tiers.worth, self.block_size, self.writes)

    # -- sequences that wait ------------------------------------------------------------------------------------
    def admit(self, sequence: Sequence, spare: int, to_the_end: bool = False) -> tuple[int, ...] | None:
        """Give a sequence without blocks the ones for all its known tokens, cached ones first.

        Sets `computed` to the tokens that are cached, or come with the request; at least one is left to compute, since
        the next is sampled from it, and all those whose positions are to be scored. Returns the table, or None (nothing
        changed) when fewer than `spare` blocks would stay available, or content must be stored first to make room.
        to_the_end: for all the tokens that it may ever have, so that nothing can stop it on its way.
        """
        lookup = self.sharing.find(sequence)
        if self.swap.storing or not self._has_room(sequence, lookup, spare, to_the_end):
            return None
        hits, needed = self.sharing.hits(lookup), self._needed(sequence, lookup, to_the_end)
        places = needed.places
        offloaded = tuple(place for place in places if place.block is None)
        if not self.swap.clears(sum(needed.fresh) + len(offloaded), [place.block for place in places]):
            return None
        self._waits_no_longer(sequence)
        if self.sessions is not None:
            self.sessions.admit(sequence, [(place.block, place.host_block) for place in hits])
        sequence.num_computed = max(len(hits) * self.block_size, self.layout.handed(sequence))
        if self.has_state:  # before blocks are evicted, which may be those that it is beside
            self.states.admit(sequence, lookup.chain.places, len(hits))
        self._acquire(sequence, places, offloaded)
        self.tables.begin(sequence, needed.found, needed.fresh, self.layout.size(sequence, to_the_end))
        sequence.published = len(hits)
        sequence.node = hits[-1].node if hits else self.sharing.root(sequence)
        return tuple(sequence.blocks)

    def fits(self, sequence: Sequence, spare: int, without: Sequences[Sequence] = ()) -> bool:
        """Whether `admit` would succeed now, or when these had given up their blocks."""
        lookup = self.sharing.find(sequence)
        if without:
            alone = self.tables.alone(without)
            if not self._has_room(sequence, lookup, spare - len(alone)):
                return False
            # What the newcomer finds in the cache anyway brings it nothing.
            places = self._needed(sequence, lookup).places
            spare -= len(alone) - sum(place.block in alone for place in places)
        return self._has_room(sequence, lookup, spare)

    def needs(self, sequence: Sequence) -> int:
        """Blocks that its admission takes of those that are available."""
        return self._taken(self._needed(sequence, self.sharing.find(sequence)))

    def cached_tokens(self, sequence: Sequence) -> int:
        """Leading tokens of a waiting sequence that are cached now."""
        return len(self.sharing.hits(self.sharing.find(sequence))) * self.block_size

    # -- sequences that run -------------------------------------------------------------------------------------
    def resumes_at(self, sequence: Sequence) -> int:
        """Most tokens that it need not compute again when it comes back, if all of them stay cached."""
        return sequence.num_computed if sequence.state is None else sequence.state.newest

    def preempt(self, sequence: Sequence, keep: bool) -> None:
        """The sequence gives up its blocks but will be back. Their content stays findable while nobody needs the
        space, and with `keep` also afterwards, on the host: as much of it as it can go on behind."""
        if keep:
            most = min(sequence.published, self.resumes_at(sequence) // self.block_size)
            published = (block for table in sequence.block_tables for block in table[:most])
            places = (self.prefix.at(block) for block in published if block in self.prefix)
            sequence.offloaded = self.swap.want(places, sequence.number)
        self._release(sequence, comes_back=True)

    def end(self, sequence: Sequence) -> None:
        """The sequence will not be back."""
        if self.handing is not None:
            self.handing.ended(sequence)
        self._waits_no_longer(sequence)
        if self.sessions is not None:
            self.sessions.end(sequence)
        self.swap.give_up(sequence.offloaded, sequence.number, sequence.session)
        sequence.offloaded = ()
        self._release(sequence)

    def forget_all(self) -> None:
        """No content can be trusted any more (a step failed half-way)."""
        self.swap.forget_all()
        self.pool.evict_all()
        self.prefix.clear()
        self.states.slots.drop_all()
        if self.writes is not None:
            self.writes.forget_all()

    # -- steps --------------------------------------------------------------------------------------------------
    def begin_writes(self, step: int) -> None:
        """Store what is to be kept in a tier, and hand over what peers are to have, with the plan of this step."""
        self.swap.store_ahead()
        if self.writes is not None:
            self.writes.begin(step)
        if self.handing is not None:
            self.handing.begin()

    def early_sends(self, chunks: Sequences[Chunk], running: Iterable[Sequence]) -> tuple[EarlySend, ...]:
        """What of these chunks' blocks peers may have while they are computed."""
        return () if self.handing is None else self.handing.computing(chunks, running, self.block_size)

    def committed(self, step: int) -> None:
        """What plans up to this one were to compute is computed."""
        if self.writes is not None:
            self.writes.committed(step)

    def tier_counts(self) -> TierStats | None:
        """None: there are no tiers."""
        if not self._tiers:
            return None
        loads = LoaderCounts() if self.loader is None else self.loader.counts
        writes = WriteCounts() if self.writes is None else self.writes.counts
        of_loads = loads.asked, loads.brought, loads.failed, loads.declined
        return TierStats(*of_loads, writes.stored, writes.failed, writes.missed)

    @property
    def writes_wait(self) -> bool:
        waits = self.writes is not None and self.writes.waiting
        return waits or (self.handing is not None and self.handing.waiting)

    # -- inside -------------------------------------------------------------------------------------------------
    def _dropped(self, node: int) -> None:
        self.states.slots.drop(node)
        if self.writes is not None:
            self.writes.dropped(node)

    def _waits_no_longer(self, sequence: Sequence) -> None:
        self.sharing.forget(sequence)
        if self.loader is not None:
            self.loader.left(sequence)

    def _acquire(self, sequence: Sequence, places: list[CachedBlock], offloaded: tuple[CachedBlock, ...]) -> None:
        """It holds what it found; what of that is on the host is loaded into blocks of its own."""
        for place in places:
            if place.block is not None:
                self.pool.acquire(place.block)
        if offloaded:
            self.swap.hold(offloaded)
            sequence.timings.swapped_blocks += len(offloaded)
            self.swap.load(offloaded, self.pool.allocate(len(offloaded)))
        self.swap.give_up(sequence.offloaded, sequence.number, sequence.session)
        sequence.offloaded = ()
        sequence.waiting_for_kv = {place.loading for place in places if place.loading}

    def _release(self, sequence: Sequence, comes_back: bool = False) -> None:
        if sequence.state is not None:
            self.states.leave(sequence, comes_back)
        self.tables.release(sequence)
        sequence.published = 0
        sequence.node = None
        sequence.num_computed = 0
        sequence.waiting_for_kv = set()

    def _needed(self, sequence: Sequence, lookup: Lookup, to_the_end: bool = False) -> _Needed:
        hits, size = self.sharing.hits(lookup), self.layout.size(sequence, to_the_end)
        if not self.has_windows:
            return _Needed([list(hits)], [size - len(hits)])
        needed, computed = _Needed([], []), max(len(hits) * self.block_size, self.layout.handed(sequence))
        for group in range(len(self._capacity.windows)):
            first = self.layout.first(group, computed)
            first = first if group else min(first, len(hits))  # what follows is chained to them
            found: list[CachedBlock | None] = [None] * first
            for place in hits[first:]:
                found.append(self.prefix.beside(place.node, group) if group else place)
            needed.found.append(found)
            needed.fresh.append(max(0, self.layout.end(group, first, size) - len(found)))
        return needed

    def _taken(self, needed: _Needed) -> int:
        """Blocks that are available, and would not be afterwards."""
        blocks = [place.block for place in needed.places]
        return sum(needed.fresh) + blocks.count(None) + self.pool.count_evictable(blocks)

    def _has_room(self, sequence: Sequence, lookup: Lookup, spare: int, to_the_end: bool = False) -> bool:
        """Whether `spare` blocks would stay available. Nothing but blocks that are given up, and a longer chain, makes
        more room: without these the answer is no as before, and the chain's blocks are not counted again."""
        length = len(lookup.chain.places)
        since = self.pool.given_up - lookup.given_up
        if length == lookup.length and not to_the_end and lookup.room + since < spare:
            return False
        room = self.pool.available - self._taken(self._needed(sequence, lookup, to_the_end))
        if not (to_the_end or self.has_windows or self.has_state):  # what is found beside a chain comes and goes
            lookup.room, lookup.given_up, lookup.length = room, self.pool.given_up, length
        return room >= spare
