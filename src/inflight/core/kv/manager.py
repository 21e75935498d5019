"""KV memory as the scheduler sees it: sequences get, share, grow and lose blocks.

Joins the pool (who holds what), the prefix cache (what is where), the swap space (what is kept on the host) and the
transfers in between. Knows sequences' tables; decides nothing: who is admitted and who is preempted is the scheduler's.
Of several KV groups (`core.types.kv_groups`) a sequence has a table each. A table without a window has its blocks as
below; one with a window has those that the window and the next chunk need, and slides on as the sequence is computed.
Allocation is `paged` (vLLM, arXiv 2309.06180): blocks for the known tokens at admission, one more whenever a decode
crosses a block's end; or, as older systems do and for comparison, `reserve-request` (for the longest output that the
request allows) and `reserve-max` (for the longest sequence that the model allows).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable
from collections.abc import Sequence as Sequences
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Literal

from inflight.core.kv.block_pool import BlockPool
from inflight.core.kv.prefix_cache import CachedBlock, CachedChain, PrefixCache
from inflight.core.kv.snapshot_spacing import SnapshotSpacing
from inflight.core.kv.state_snapshots import StateSnapshots
from inflight.core.kv.swap_space import SwapSpace
from inflight.core.kv.transfers import Transfers
from inflight.core.sequence import Sequence
from inflight.core.types.kv_groups import ANY_LENGTH, first_seen, most_blocks, most_tokens, window_blocks
from inflight.core.types.plan import Capacity

NO_BLOCKS: tuple[int, ...] = ()
Allocation = Literal["paged", "reserve-request", "reserve-max"]


@dataclass(slots=True)
class _Lookup:
    """What was last found for a waiting sequence. room: blocks that its admission would have left available, below 0
    those that it lacked; given_up, length: of the pool and the chain then. waited: for a snapshot, a step."""

    chain: CachedChain = field(default_factory=CachedChain)
    room: int = 0
    given_up: int = 0
    length: int = -1
    waited: bool = False


@dataclass(slots=True)
class _Needed:
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
        longest_chunk: int = ANY_LENGTH,
        spacing: SnapshotSpacing | None = None,
    ):
        """longest_chunk: tokens of one sequence that a step computes at most. spacing: of snapshots of recurrent state,
        where the model has any."""
        self.block_size = capacity.block_size
        self.has_windows = capacity.windows != (0,)  # of one group without, all is as it is without groups
        self.has_state = capacity.state_snapshots > 0
        self._spacing = spacing or SnapshotSpacing()
        self._windows = capacity.windows
        self._longest_chunk = longest_chunk
        self._nothing = capacity.num_blocks  # in a table, in the place of a block that is behind the window
        limit = capacity.max_model_len
        self.most_tokens = most_tokens(capacity.num_blocks, self.block_size, self._windows, longest_chunk, limit)
        self._capacity = capacity
        self._prefix_caching = prefix_caching
        self._allocation = allocation
        self.begin_anew()

    def begin_anew(self) -> None:
        """Every block is free, and nothing is known of what is in it."""
        self.states = StateSnapshots(self._capacity.state_snapshots, self.block_size, self._spacing)
        self.prefix = PrefixCache(self.block_size, on_drop=self.states.slots.drop)
        self.pool = BlockPool(self._capacity.num_blocks, on_evict=lambda block: self.swap.evicted(block))
        self.transfers = Transfers(self.pool, self.prefix.__contains__, self._capacity.asynchronous_transfers)
        self.swap = SwapSpace(self._capacity.host_blocks, self.prefix, self.pool, self.transfers)
        self._private: dict[Hashable, list[int]] = {}  # without prefix caching: root → nodes, until the request ends
        self._lookups: dict[int, _Lookup] = {}  # of waiting sequences that were looked at, by number

    def blocks_for(self, tokens: int) -> int:
        return -(-tokens // self.block_size)

    def most_blocks(self, tokens: int) -> int:
        """That a sequence of so many tokens holds at most."""
        return most_blocks(tokens, self.block_size, self._windows, self._longest_chunk)

    # -- sequences ----------------------------------------------------------------------------------------------
    def admit(self, sequence: Sequence, spare: int, to_the_end: bool = False) -> tuple[int, ...] | None:
        """Give a sequence without blocks the ones for all its known tokens, cached ones first.

        Sets `computed` to the tokens that are cached, or come with the request; at least one is left to compute, since
        the next is sampled from it, and all those whose positions are to be scored. Returns the table, or None (nothing
        changed) when fewer than `spare` blocks would stay available, or content must be stored first to make room.
        to_the_end: for all the tokens that it may ever have, so that nothing can stop it on its way.
        """
        lookup = self._find(sequence)
        if self.swap.storing or not self._has_room(sequence, lookup, spare, to_the_end):
            return None
        hits, needed = self._hits(lookup), self._needed(sequence, lookup, to_the_end)
        places = needed.places
        offloaded = tuple(place for place in places if place.block is None)
        if not self._is_cleared(sum(needed.fresh) + len(offloaded), [place.block for place in places]):
            return None
        del self._lookups[sequence.number]
        sequence.num_computed = max(len(hits) * self.block_size, self._handed(sequence))
        if self.has_state:  # before blocks are evicted, which may be those that it is beside
            self.states.admit(sequence, lookup.chain.places, len(hits))
        for place in places:
            if place.block is not None:
                self.pool.acquire(place.block)
        if offloaded:
            sequence.timings.swapped_blocks += len(offloaded)
            self.swap.load(offloaded, self.pool.allocate(len(offloaded)))
        self.swap.give_up(sequence.offloaded)
        sequence.offloaded = ()
        sequence.waiting_for_kv = {place.loading for place in places if place.loading}
        sequence.block_tables = [
            [*self._blocks_of(found), *self.pool.allocate(fresh)]
            for found, fresh in zip(needed.found, needed.fresh, strict=True)
        ]
        sequence.blocks = sequence.block_tables[0]
        sequence.passed = [found.count(None) for found in needed.found]
        sequence.told = [0] * len(needed.found)
        sequence.table_size = self._size(sequence, to_the_end)
        sequence.published = len(hits)
        sequence.node = hits[-1].node if hits else self._root(sequence)
        return tuple(sequence.blocks)

    def fits(self, sequence: Sequence, spare: int, without: Sequences[Sequence] = ()) -> bool:
        """Whether `admit` would succeed now, or when these had given up their blocks."""
        lookup = self._find(sequence)
        if without:
            held = Counter(block for one in without for block in self.held(one))
            alone = {block for block, count in held.items() if self.pool.ref_count(block) == count}
            if not self._has_room(sequence, lookup, spare - len(alone)):
                return False
            # What the newcomer finds in the cache anyway brings it nothing.
            places = self._needed(sequence, lookup).places
            spare -= len(alone) - sum(place.block in alone for place in places)
        return self._has_room(sequence, lookup, spare)

    def gain(self, sequences: Sequences[Sequence]) -> int:
        """Blocks that would be available if these gave theirs up: those that nobody else holds."""
        held = Counter(block for one in sequences for block in self.held(one))
        return sum(self.pool.ref_count(block) == count for block, count in held.items())

    def needs(self, sequence: Sequence) -> int:
        """Blocks that its admission takes of those that are available."""
        needed = self._needed(sequence, self._find(sequence))
        blocks = [place.block for place in needed.places]
        return sum(needed.fresh) + blocks.count(None) + self.pool.count_evictable(blocks)

    def cached_tokens(self, sequence: Sequence) -> int:
        """Leading tokens of a waiting sequence that are cached now."""
        return len(self._hits(self._find(sequence))) * self.block_size

    def awaits_snapshot(self, sequence: Sequence) -> bool:
        """Whether a waiting sequence should wait for the next plan, once: it could begin behind more of its tokens
        then, since this one writes a snapshot behind them."""
        lookup = self._find(sequence)
        if lookup.waited:
            return False
        lookup.waited = self.states.is_coming(lookup.chain.places[len(self._hits(lookup)) :])
        return lookup.waited

    def resumes_at(self, sequence: Sequence) -> int:
        """Most tokens that it need not compute again when it comes back, if all of them stay cached."""
        return sequence.num_computed if sequence.state is None else sequence.state.newest

    def held(self, sequence: Sequence) -> list[int]:
        """Its blocks, of all groups, in the order of their positions."""
        if not self.has_windows:
            return sequence.blocks
        columns = zip_longest(*sequence.block_tables, fillvalue=self._nothing)
        return [block for column in columns for block in column if block != self._nothing]

    def used_slots(self, sequence: Sequence) -> int:
        """Slots of its blocks, of all groups, with keys and values."""
        return sum(sequence.num_computed - passed * self.block_size for passed in sequence.passed)

    def room(self, sequence: Sequence, spare: int) -> int:
        """Tokens that its tables hold, with so many blocks more."""
        tables = sequence.block_tables
        return (min(map(len, tables)) + spare // len(tables)) * self.block_size

    def lacking(self, sequence: Sequence, tokens: int) -> int:
        """Blocks that must be given up so that `grow` finds what it needs."""
        length = self.blocks_for(tokens)
        return sum(max(0, length - len(table)) for table in sequence.block_tables) - self.pool.available

    def grow(self, sequence: Sequence, tokens: int) -> tuple[int, ...] | None:
        """New blocks so that the tables hold `tokens`; None (nothing changed) when there are too few, or content must
        be stored first. Returns those of the first group, which `tell` tells with all others."""
        missing = self.blocks_for(tokens) - len(sequence.blocks)
        if missing <= 0 and not self.has_windows:
            return NO_BLOCKS
        length = len(sequence.blocks) + missing
        of_each = [max(0, length - len(table)) for table in sequence.block_tables]
        in_all = sum(of_each)
        if not in_all:
            return NO_BLOCKS
        if in_all > self.pool.available or not self._is_cleared(in_all, ()):
            return None
        for table, count in zip(sequence.block_tables, of_each, strict=True):
            table.extend(self.pool.allocate(count))
        return tuple(sequence.blocks[length - of_each[0] :])

    def tell(self, sequence: Sequence) -> tuple[tuple[int, ...], tuple[tuple[int, ...], ...]]:
        """What its tables have that no chunk has told yet: `Chunk.new_blocks` and `Chunk.window_blocks`."""
        first, *others = (tuple(table[told:]) for table, told in zip(sequence.block_tables, sequence.told, strict=True))
        sequence.told = [len(table) for table in sequence.block_tables]
        return first, tuple(others) if any(others) else ()

    def slide(self, sequence: Sequence) -> None:
        """Give up what is behind the windows of all queries to come, and take as many blocks for the prompt that is
        left. In this step others may write to what was given up: those in flight are computed before it."""
        if sequence.num_drafts or (self.transfers.asynchronous and sequence.in_flight):
            return  # computed may be taken back; a transfer need not wait for steps
        for group, window in enumerate(self._windows):
            first = min(first_seen(sequence.num_computed, window) // self.block_size, sequence.published)
            passed, table = sequence.passed[group], sequence.block_tables[group]
            if first <= passed:
                continue
            self.pool.release(reversed(table[passed:first]), self.prefix.__contains__)
            table[passed:first] = [self._nothing] * (first - passed)
            sequence.passed[group] = first
            more = min(self._table_end(window, first, sequence.table_size) - len(table), self.pool.available)
            if more > 0 and self._is_cleared(more, ()):
                table.extend(self.pool.allocate(more))

    def publish(self, sequence: Sequence) -> None:
        """Make full blocks findable whose tokens are known and computed (or planned: steps run in order, and a step
        writes all keys and values of a layer before it reads any)."""
        size, computed = self.block_size, sequence.num_computed
        if computed < (sequence.published + 1) * size:
            return  # as after most tokens
        full = (computed if computed < sequence.num_tokens else sequence.num_tokens) // size
        while sequence.published < full:
            start = sequence.published * size
            tokens = sequence.token_slice(start, start + size)
            block = sequence.blocks[sequence.published]
            nodes = [self._adopted(self.prefix.publish(sequence.node, tokens, block), block)]
            for group, table in enumerate(sequence.block_tables[1:], 1):
                if sequence.published >= sequence.passed[group]:
                    block = table[sequence.published]
                    nodes.append(self._adopted(self.prefix.publish_beside(nodes[0], group, block), block))
            sequence.node = nodes[0]
            sequence.published += 1
            if sequence.state is not None:
                self.states.name(sequence, sequence.published * size, nodes[0])
            if not self._prefix_caching:
                self._private.setdefault(self._root(sequence), []).extend(nodes)

    def preempt(self, sequence: Sequence, keep: bool) -> None:
        """The sequence gives up its blocks but will be back. Their content stays findable while nobody needs the
        space, and with `keep` also afterwards, on the host: as much of it as it can go on behind."""
        if keep:
            most = min(sequence.published, self.resumes_at(sequence) // self.block_size)
            published = (block for table in sequence.block_tables for block in table[:most])
            sequence.offloaded = self.swap.want(self.prefix.at(block) for block in published if block in self.prefix)
        self._release(sequence, comes_back=True)

    def end(self, sequence: Sequence) -> None:
        """The sequence will not be back."""
        self._lookups.pop(sequence.number, None)
        self.swap.give_up(sequence.offloaded)
        sequence.offloaded = ()
        self._release(sequence)

    def forget_request(self, sample: Sequence) -> None:
        """The last sample of a request has ended: without prefix caching nobody else can find what it computed."""
        for node in self._private.pop(self._root(sample), ()):
            place = self.prefix.block_of(node)
            if place is None:
                continue
            self.prefix.drop(place)
            if place.block is not None and self.pool.is_evictable(place.block):
                self.pool.evict(place.block)

    def forget_all(self) -> None:
        """No content can be trusted any more (a step failed half-way)."""
        self.swap.forget_all()
        self.pool.evict_all()
        self.prefix.clear()
        self.states.slots.drop_all()

    # -- inside -------------------------------------------------------------------------------------------------
    def _release(self, sequence: Sequence, comes_back: bool = False) -> None:
        """Last block first, so that the ends of prefixes are evicted before their roots."""
        if sequence.state is not None:
            self.states.leave(sequence, comes_back)
        self.pool.release(reversed(self.held(sequence)), keeps_content=self.prefix.__contains__)
        sequence.blocks, sequence.block_tables, sequence.passed, sequence.told = [], [], [], []
        sequence.published = 0
        sequence.node = None
        sequence.num_computed = 0
        sequence.waiting_for_kv = set()

    def _adopted(self, node: int, block: int) -> int:
        """What a sequence computes again, behind a snapshot, is cached already. Where nobody holds the node's block,
        its own takes that place: what is chained to the node is found as long as it is there, and the other is free."""
        if self.has_state:
            place = self.prefix.block_of(node)
            if place is not None and place.block not in (None, block) and self.pool.is_evictable(place.block):
                self.pool.evict(place.block)
                self.prefix.move(place, block, None)
        return node

    def _find(self, sequence: Sequence) -> _Lookup:
        """What is cached of a waiting sequence."""
        lookup = self._lookups.get(sequence.number)
        if lookup is None:
            lookup = self._lookups[sequence.number] = _Lookup()
        most = sequence.most_cached // self.block_size
        self.prefix.match(lookup.chain, self._root(sequence), sequence.token_slice, most)
        return lookup

    def _hits(self, lookup: _Lookup) -> list[CachedBlock]:
        """The leading blocks, as many as can be, of which every group has what its window shows to the next token, and
        behind which the model's recurrent state is kept, if it has any."""
        places = lookup.chain.places
        length = len(places)
        if self.has_state:
            length = self.states.longest(places, length)
        if self.has_windows:
            while (seen := self._seen(places, length)) < length:
                length = self.states.longest(places, seen) if self.has_state else seen
        return places if length == len(places) else places[:length]

    def _seen(self, places: list[CachedBlock], length: int) -> int:
        """Of so many leading blocks, as many as every group has what its window shows of to the next token."""
        group = 1
        while group < len(self._windows):
            first = first_seen(length * self.block_size, self._windows[group]) // self.block_size
            lost = (at for at in reversed(range(first, length)) if self.prefix.beside(places[at].node, group) is None)
            shorter = next(lost, None)
            # Without the block at `shorter` no group can have more than what is before it: all are asked anew.
            length, group = (length, group + 1) if shorter is None else (shorter, 1)
        return length

    def _needed(self, sequence: Sequence, lookup: _Lookup, to_the_end: bool = False) -> _Needed:
        hits, size = self._hits(lookup), self._size(sequence, to_the_end)
        if not self.has_windows:
            return _Needed([list(hits)], [size - len(hits)])
        needed, computed = _Needed([], []), max(len(hits) * self.block_size, self._handed(sequence))
        for group, window in enumerate(self._windows):
            first = first_seen(computed, window) // self.block_size
            first = first if group else min(first, len(hits))  # what follows is chained to them
            found: list[CachedBlock | None] = [None] * first
            for place in hits[first:]:
                found.append(self.prefix.beside(place.node, group) if group else place)
            needed.found.append(found)
            needed.fresh.append(max(0, self._table_end(window, first, size) - len(found)))
        return needed

    def _table_end(self, window: int, first: int, size: int) -> int:
        """How far a table reaches whose first block that is seen is that one, of a sequence with `size` blocks."""
        return min(size, first + window_blocks(window, self._longest_chunk, self.block_size)) if window else size

    def _blocks_of(self, found: list[CachedBlock | None]) -> list[int]:
        return [self._nothing if one is None or one.block is None else one.block for one in found]

    def _handed(self, sequence: Sequence) -> int:
        """Tokens in whole blocks that came with the request; they are in its blocks until it is preempted."""
        handed = 0 if sequence.recompute_until else min(sequence.request.handed_tokens, sequence.most_cached)
        return handed // self.block_size * self.block_size

    def _is_cleared(self, count: int, spared: Sequences[int | None]) -> bool:
        """Whether so many of the available blocks, none of these, can be taken now. Where transfers are asynchronous,
        what is to be kept of them is stored first, and that begins."""
        if not self.transfers.asynchronous:
            return True
        return not self.swap.store(self.pool.next_evicted(count, spared))

    def _size(self, sequence: Sequence, to_the_end: bool) -> int:
        """Blocks of the table at admission."""
        blocks = self.blocks_for(sequence.num_tokens)
        if self._allocation == "reserve-max":
            blocks = self.blocks_for(self._capacity.max_model_len)
        elif to_the_end or self._allocation == "reserve-request":
            blocks = self.blocks_for(len(sequence.prompt) + sequence.most_output)
        # All there is, if that is less: the sequence then runs alone, and ends when it has filled it.
        return min(max(blocks, self.blocks_for(sequence.num_tokens)), self.blocks_for(self.most_tokens))

    def _has_room(self, sequence: Sequence, lookup: _Lookup, spare: int, to_the_end: bool = False) -> bool:
        """Whether `spare` blocks would stay available. Nothing but blocks that are given up, and a longer chain, makes
        more room: without these the answer is no as before, and the chain's blocks are not counted again."""
        length = len(lookup.chain.places)
        since = self.pool.given_up - lookup.given_up
        if length == lookup.length and not to_the_end and lookup.room + since < spare:
            return False
        needed = self._needed(sequence, lookup, to_the_end)
        blocks = [place.block for place in needed.places]
        fresh = sum(needed.fresh) + blocks.count(None)
        room = self.pool.available - self.pool.count_evictable(blocks) - fresh
        if not (to_the_end or self.has_windows or self.has_state):  # what is found beside a chain comes and goes
            lookup.room, lookup.given_up, lookup.length = room, self.pool.given_up, length
        return room >= spare

    def _root(self, sequence: Sequence) -> Hashable:
        """Whom a sequence shares prefixes with: its salt; without prefix caching only the samples of its request, and
        itself after a preemption."""
        if self._prefix_caching:
            return ("salt", sequence.request.cache_salt)
        return ("request", sequence.number - sequence.sample_index)
