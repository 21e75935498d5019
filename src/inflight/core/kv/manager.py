"""KV memory as the scheduler sees it: sequences get, share, grow and lose blocks.

Joins the pool (who holds what), the prefix cache (what is where), the swap space (what is kept on the host) and the
transfers in between. Knows sequences' tables; decides nothing: who is admitted and who is preempted is the scheduler's.
Allocation is `paged` (vLLM, arXiv 2309.06180): blocks for the known tokens at admission, one more whenever a decode
crosses a block's end; or, as older systems do and for comparison, `reserve-request` (for the longest output that the
request allows) and `reserve-max` (for the longest sequence that the model allows).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable
from collections.abc import Sequence as Sequences
from dataclasses import dataclass, field
from typing import Literal

from inflight.core.kv.block_pool import BlockPool
from inflight.core.kv.prefix_cache import CachedChain, PrefixCache
from inflight.core.kv.swap_space import SwapSpace
from inflight.core.kv.transfers import Transfers
from inflight.core.sequence import Sequence
from inflight.core.types.plan import Capacity

NO_BLOCKS: tuple[int, ...] = ()
Allocation = Literal["paged", "reserve-request", "reserve-max"]


@dataclass(slots=True)
class _Lookup:
    """What was last found for a waiting sequence. room: blocks that its admission would have left available, below 0
    those that it lacked; given_up, length: of the pool and the chain then."""

    chain: CachedChain = field(default_factory=CachedChain)
    room: int = 0
    given_up: int = 0
    length: int = -1


class KVCacheManager:
    def __init__(self, capacity: Capacity, prefix_caching: bool, allocation: Allocation = "paged"):
        self.block_size = capacity.block_size
        self._capacity = capacity
        self._prefix_caching = prefix_caching
        self._allocation = allocation
        self.begin_anew()

    def begin_anew(self) -> None:
        """Every block is free, and nothing is known of what is in it."""
        self.prefix = PrefixCache(self.block_size)
        self.pool = BlockPool(self._capacity.num_blocks, on_evict=lambda block: self.swap.evicted(block))
        self.transfers = Transfers(self.pool, self.prefix.__contains__, self._capacity.asynchronous_transfers)
        self.swap = SwapSpace(self._capacity.host_blocks, self.prefix, self.pool, self.transfers)
        self._private: dict[Hashable, list[int]] = {}  # without prefix caching: root → nodes, until the request ends
        self._lookups: dict[int, _Lookup] = {}  # of waiting sequences that were looked at, by number

    def blocks_for(self, tokens: int) -> int:
        return -(-tokens // self.block_size)

    # -- sequences ----------------------------------------------------------------------------------------------
    def admit(self, sequence: Sequence, spare: int, to_the_end: bool = False) -> tuple[int, ...] | None:
        """Give a sequence without blocks the ones for all its known tokens, cached ones first.

        Sets `computed` to the tokens that are cached, or come with the request; at least one is left to compute, since
        the next is sampled from it, and all those whose positions are to be scored. Returns the table, or None (nothing
        changed) when fewer than `spare` blocks would stay available, or content must be stored first to make room.
        to_the_end: for all the tokens that it may ever have, so that nothing can stop it on its way.
        """
        lookup = self._find(sequence)
        hits = lookup.chain.places
        size = self._size(sequence, to_the_end)
        if self.swap.storing or not self._has_room(sequence, lookup, spare, to_the_end):
            return None
        offloaded = tuple(place for place in hits if place.block is None)
        if not self._is_cleared(size - len(hits) + len(offloaded), [place.block for place in hits]):
            return None
        del self._lookups[sequence.number]
        for place in hits:
            if place.block is not None:
                self.pool.acquire(place.block)
        if offloaded:
            sequence.timings.swapped_blocks += len(offloaded)
            self.swap.load(offloaded, self.pool.allocate(len(offloaded)))
        self.swap.give_up(sequence.offloaded)
        sequence.offloaded = ()
        sequence.waiting_for_kv = {place.loading for place in hits if place.loading}
        table = [place.block for place in hits if place.block is not None]
        sequence.blocks = [*table, *self.pool.allocate(size - len(hits))]
        sequence.published = len(hits)
        sequence.node = hits[-1].node if hits else self._root(sequence)
        sequence.num_computed = max(len(hits) * self.block_size, self._handed(sequence))
        return tuple(sequence.blocks)

    def fits(self, sequence: Sequence, spare: int, without: Sequences[Sequence] = ()) -> bool:
        """Whether `admit` would succeed now, or when these had given up their blocks."""
        lookup = self._find(sequence)
        if without:
            held = Counter(block for one in without for block in one.blocks)
            alone = {block for block, count in held.items() if self.pool.ref_count(block) == count}
            if not self._has_room(sequence, lookup, spare - len(alone)):
                return False
            # What the newcomer finds in the cache anyway brings it nothing.
            spare -= len(alone) - sum(place.block in alone for place in lookup.chain.places)
        return self._has_room(sequence, lookup, spare)

    def gain(self, sequences: Sequences[Sequence]) -> int:
        """Blocks that would be available if these gave theirs up: those that nobody else holds."""
        held = Counter(block for one in sequences for block in one.blocks)
        return sum(self.pool.ref_count(block) == count for block, count in held.items())

    def needs(self, sequence: Sequence) -> int:
        """Blocks that its admission takes of those that are available."""
        blocks = [place.block for place in self._find(sequence).chain.places]
        fresh = self._size(sequence, False) - len(blocks) + blocks.count(None)
        return fresh + self.pool.count_evictable(blocks)

    def cached_tokens(self, sequence: Sequence) -> int:
        """Leading tokens of a waiting sequence that are cached now."""
        return len(self._find(sequence).chain.places) * self.block_size

    def grow(self, sequence: Sequence, tokens: int) -> tuple[int, ...] | None:
        """New blocks so that the table holds `tokens`; None (nothing changed) when there are too few, or content must
        be stored first."""
        missing = self.blocks_for(tokens) - len(sequence.blocks)
        if missing <= 0:
            return NO_BLOCKS
        if missing > self.pool.available or not self._is_cleared(missing, ()):
            return None
        fresh = self.pool.allocate(missing)
        sequence.blocks.extend(fresh)
        return fresh

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
            node = self.prefix.publish(sequence.node, tokens, sequence.blocks[sequence.published])
            sequence.node = node
            sequence.published += 1
            if not self._prefix_caching:
                self._private.setdefault(self._root(sequence), []).append(node)

    def preempt(self, sequence: Sequence, keep: bool) -> None:
        """The sequence gives up its blocks but will be back. Their content stays findable while nobody needs the
        space, and with `keep` also afterwards, on the host."""
        if keep:
            published = sequence.blocks[: sequence.published]
            sequence.offloaded = self.swap.want(self.prefix.at(block) for block in published if block in self.prefix)
        self._release(sequence)

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

    # -- inside -------------------------------------------------------------------------------------------------
    def _release(self, sequence: Sequence) -> None:
        """Last block first, so that the ends of prefixes are evicted before their roots."""
        self.pool.release(reversed(sequence.blocks), keeps_content=self.prefix.__contains__)
        sequence.blocks = []
        sequence.published = 0
        sequence.node = None
        sequence.num_computed = 0
        sequence.waiting_for_kv = set()

    def _find(self, sequence: Sequence) -> _Lookup:
        """What is cached of a waiting sequence."""
        lookup = self._lookups.get(sequence.number)
        if lookup is None:
            lookup = self._lookups[sequence.number] = _Lookup()
        most = sequence.most_cached // self.block_size
        self.prefix.match(lookup.chain, self._root(sequence), sequence.token_slice, most)
        return lookup

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
        return min(max(blocks, self.blocks_for(sequence.num_tokens)), self.pool.num_blocks)

    def _has_room(self, sequence: Sequence, lookup: _Lookup, spare: int, to_the_end: bool = False) -> bool:
        """Whether `spare` blocks would stay available. Nothing but blocks that are given up, and a longer chain, makes
        more room: without these the answer is no as before, and the chain's blocks are not counted again."""
        length = len(lookup.chain.places)
        since = self.pool.given_up - lookup.given_up
        if length == lookup.length and not to_the_end and lookup.room + since < spare:
            return False
        blocks = [place.block for place in lookup.chain.places]
        fresh = self._size(sequence, to_the_end) - length + blocks.count(None)
        room = self.pool.available - self.pool.count_evictable(blocks) - fresh
        if not to_the_end:
            lookup.room, lookup.given_up, lookup.length = room, self.pool.given_up, length
        return room >= spare

    def _root(self, sequence: Sequence) -> Hashable:
        """Whom a sequence shares prefixes with: its salt; without prefix caching only the samples of its request, and
        itself after a preemption."""
        if self._prefix_caching:
            return ("salt", sequence.request.cache_salt)
        return ("request", sequence.number - sequence.sample_index)
