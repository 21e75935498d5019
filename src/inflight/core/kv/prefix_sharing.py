"""Prefix sharing: what a sequence finds of its tokens in the prefix cache, and what it leaves there for others.

Joins the cache (which block has which tokens) with KV groups and recurrent state: a sequence can begin behind cached
blocks only where every group has what its window shows to the next token, and where a snapshot of the state is kept, if
the model has any. Knows who shares with whom; holds no blocks, and decides nothing.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field

from inflight.core.kv.block_pool import BlockPool
from inflight.core.kv.prefix_cache import CachedBlock, CachedChain, PrefixCache
from inflight.core.kv.state_snapshots import StateSnapshots
from inflight.core.kv.table_layout import TableLayout
from inflight.core.kv.write_behind import WriteBehind
from inflight.core.sequence import Sequence
from inflight.core.types.kv_blocks import SharedRoot


@dataclass(slots=True)
class Lookup:
    """What was last found for a waiting sequence. waited: for a snapshot, a step. fetched: what continues it beyond the
    device was asked for, if there is any. room: blocks that its admission would have left available, below 0 those that
    it lacked; given_up, length: of the pool and the chain then."""

    chain: CachedChain = field(default_factory=CachedChain)
    waited: bool = False
    fetched: bool = False
    room: int = 0
    given_up: int = 0
    length: int = -1


class PrefixSharing:
    def __init__(
        self,
        layout: TableLayout,
        pool: BlockPool,
        prefix: PrefixCache,
        states: StateSnapshots | None,
        among_requests: bool,
        writes: WriteBehind | None = None,
    ):
        """states: of a model with recurrent state. among_requests: whether prefixes are cached for other requests, too;
        otherwise the samples of one share them until it ends. writes: of what is kept in a tier as well."""
        self._writes = writes
        self._size, self._has_windows, self._layout = layout.block_size, layout.has_windows, layout
        self._pool, self._prefix, self._states = pool, prefix, states
        self._among_requests = among_requests
        self._private: dict[Hashable, list[int]] = {}  # root → nodes, until the request ends
        self._lookups: dict[int, Lookup] = {}  # of waiting sequences that were looked at, by number

    def root(self, sequence: Sequence) -> Hashable:
        """Whom a sequence shares prefixes with: those of its salt and its adapter; without prefix caching only the
        samples of its request, and itself after a preemption."""
        if self._among_requests:
            return SharedRoot(sequence.request.cache_salt, sequence.request.adapter)
        return ("request", sequence.number - sequence.sample_index)

    # -- sequences that wait ------------------------------------------------------------------------------------
    def find(self, sequence: Sequence) -> Lookup:
        """What is cached of a waiting sequence."""
        lookup = self._lookups.get(sequence.number)
        if lookup is None:
            lookup = self._lookups[sequence.number] = Lookup()
        most = sequence.max_cached_tokens // self._size
        self._prefix.match(lookup.chain, self.root(sequence), sequence.token_slice, most)
        return lookup

    def hits(self, lookup: Lookup) -> list[CachedBlock]:
        """The leading blocks, as many as can be, of which every group has what its window shows to the next token, and
        behind which the model's recurrent state is kept, if it has any."""
        places, states = lookup.chain.places, self._states
        length = len(places)
        if states is not None:
            length = states.longest(places, length)
        if self._has_windows:
            while (seen := self._seen(places, length)) < length:
                length = states.longest(places, seen) if states is not None else seen
        return places if length == len(places) else places[:length]

    def checkpoint_is_coming(self, sequence: Sequence) -> bool:
        """Return whether the plan under construction writes a checkpoint from which a waiting sequence could begin with
        fewer tokens to compute. False where the sequence has waited for one before (`wait_for_checkpoint`)."""
        if self._states is None:
            return False
        lookup = self.find(sequence)
        return not lookup.waited and self._states.is_coming(lookup.chain.places[len(self.hits(lookup)) :])

    def wait_for_checkpoint(self, sequence: Sequence) -> None:
        """Note that a sequence waits for the next plan; it does so once."""
        self.find(sequence).waited = True

    def forget(self, sequence: Sequence) -> None:
        """It waits no longer."""
        self._lookups.pop(sequence.number, None)

    # -- sequences that run -------------------------------------------------------------------------------------
    def publish(self, sequence: Sequence) -> None:
        """Make full blocks findable whose tokens are known and computed (or planned: steps run in order, and a step
        writes all keys and values of a layer before it reads any)."""
        size, computed = self._size, sequence.num_computed
        if computed < (sequence.published + 1) * size:
            return  # as after most tokens
        full = (computed if computed < sequence.num_tokens else sequence.num_tokens) // size
        while sequence.published < full:
            start = sequence.published * size
            tokens = sequence.token_slice(start, start + size)
            block = sequence.blocks[sequence.published]
            nodes = [self._adopted(self._prefix.publish(sequence.node, tokens, block), block)]
            for group, table in enumerate(sequence.block_tables[1:], 1):
                if sequence.published >= sequence.passed[group]:
                    block = table[sequence.published]
                    nodes.append(self._adopted(self._prefix.publish_beside(nodes[0], group, block), block))
            if self._writes is not None and isinstance(sequence.node, int | SharedRoot):
                self._writes.published(nodes[0], sequence.node, tokens)
            sequence.node = nodes[0]
            sequence.published += 1
            if self._states is not None and sequence.state is not None:
                self._states.name(sequence, sequence.published * size, nodes[0])
            if not self._among_requests:
                self._private.setdefault(self.root(sequence), []).extend(nodes)

    def free_request(self, sample: Sequence) -> None:
        """End a request with its last sample: without prefix caching, its cached blocks are dropped."""
        for node in self._private.pop(self.root(sample), ()):
            place = self._prefix.block_of(node)
            if place is None:
                continue
            self._prefix.drop(place)
            if place.block is not None and self._pool.is_evictable(place.block):
                self._pool.evict(place.block)

    # -- inside -------------------------------------------------------------------------------------------------
    def _seen(self, places: list[CachedBlock], length: int) -> int:
        """Of so many leading blocks, as many as every group has what its window shows of to the next token."""
        group = 1
        while group < len(self._layout.windows):
            first = self._layout.first(group, length * self._size)
            lost = (at for at in reversed(range(first, length)) if self._prefix.beside(places[at].node, group) is None)
            shorter = next(lost, None)
            # Without the block at `shorter` no group can have more than what is before it: all are asked anew.
            length, group = (length, group + 1) if shorter is None else (shorter, 1)
        return length

    def _adopted(self, node: int, block: int) -> int:
        """What a sequence computes again, behind a snapshot, is cached already. Where nobody holds the node's block,
        its own takes that place: what is chained to the node is found as long as it is there, and the other is free."""
        if self._states is not None:
            place = self._prefix.block_of(node)
            if place is not None and place.block not in (None, block) and self._pool.is_evictable(place.block):
                self._pool.evict(place.block)
                self._prefix.move(place, block, None)
        return node
