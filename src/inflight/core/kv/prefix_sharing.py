"""Prefix sharing: finds the cached prefix of waiting sequences, and publishes the blocks of running ones.

A sequence can begin behind cached blocks only where every KV group has the blocks that its window shows to the next
token, and where a checkpoint of the recurrent state exists, if the model has any.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Set
from dataclasses import dataclass, field
from itertools import takewhile

from msgspec import Struct

from inflight.core.kv.block_pool import BlockPool
from inflight.core.kv.block_tables import TableLayout
from inflight.core.kv.prefix_cache import CachedBlock, CachedChain, PrefixCache
from inflight.core.kv.state_checkpoints import NOWHERE, Elsewhere, StateCheckpoints
from inflight.core.sequence import Sequence
from inflight.core.types.kv_blocks import SharedRoot


@dataclass(slots=True)
class Lookup:
    """Last lookup of a waiting sequence.

    Attributes:
        chain: Its cached blocks.
        waited: Whether it has waited for a checkpoint.
        has_loaded: Whether sources were asked for the blocks behind these.
        room: Blocks that its admission would have left available; negative: blocks that it lacked.
        num_released: Of the pool, when `room` was computed.
        length: Of the chain, when `room` was computed.
    """

    chain: CachedChain = field(default_factory=CachedChain)
    waited: bool = False
    has_loaded: bool = False
    room: int = 0
    num_released: int = 0
    length: int = -1


class BlockDemand(Struct):
    """Blocks that a sequence's admission takes.

    Attributes:
        found: Beginning of each group's table: cached blocks, and None for blocks behind its window.
        fresh: Blocks to allocate behind these, for each table.
        size: Blocks of a table without a window.
        cached: Those of all tables.
    """

    found: list[list[CachedBlock | None]]
    fresh: list[int]
    size: int
    cached: list[CachedBlock]


class PrefixSharing:
    def __init__(
        self,
        layout: TableLayout,
        pool: BlockPool,
        prefix: PrefixCache,
        states: StateCheckpoints | None,
        among_requests: bool,
        on_publish: Callable[[list[int], int | SharedRoot, tuple[int, ...]], None] | None = None,
        *,
        distinct: bool = False,
    ):
        """Create it without sequences.

        Args:
            layout: Of block tables.
            pool: Of blocks.
            prefix: Of their content.
            states: Checkpoints of a model with recurrent state.
            among_requests: Whether requests share prefixes; otherwise only the samples of one request do, until it
                ends.
            on_publish: Called for each published block of shared chains with the nodes of all groups that have it, the
                first group's first, the parent and the tokens.
            distinct: Whether no two requests have a block of tokens in common.
        """
        self._layout, self._size, self._has_windows = layout, layout.block_size, layout.has_windows
        self._pool, self._prefix, self._states, self._on_publish = pool, prefix, states, on_publish
        self._among_requests = among_requests
        self._own_roots = distinct or not among_requests  # whether a request's blocks are found by itself alone
        # Where requests share nothing, only a preempted sequence finds its own blocks: they are published then, but
        # those of a request of several samples at once.
        self.defers = (distinct or not among_requests) and not layout.has_windows and states is None
        self.has_groups = layout.has_windows or states is not None
        # Whether a block is one node, and no more.
        self._is_plain = among_requests and not self.has_groups and on_publish is None
        self._private: dict[Hashable, list[int]] = {}  # root → nodes, where requests share nothing
        self._lookups: dict[int, Lookup] = {}  # of waiting sequences, by number
        self._hidden: Set[int] = frozenset()  # blocks of the first group behind which no sequence may begin now

    def root(self, sequence: Sequence) -> Hashable:
        """Return the root of a sequence's chain: its salt and adapter, or its request."""
        if self._own_roots:
            return ("request", sequence.number - sequence.sample_index)
        return SharedRoot(sequence.request.cache_salt, sequence.request.adapter)

    # -- waiting sequences --------------------------------------------------------------------------------------
    def find(self, sequence: Sequence) -> Lookup:
        """Return the cached chain of a waiting sequence, up to date."""
        lookup = self._lookups.get(sequence.number)
        if lookup is None:
            lookup = self._lookups[sequence.number] = Lookup()
        limit = sequence.max_cached_tokens // self._size
        self._prefix.match(lookup.chain, self.root(sequence), sequence.token_slice, limit)
        return lookup

    def hits(self, lookup: Lookup) -> list[CachedBlock]:
        """Return the leading blocks of a chain behind which a sequence can begin."""
        blocks = lookup.chain.blocks
        if self._hidden:
            blocks = list(takewhile(lambda one: one.block not in self._hidden, blocks))
        if not self.has_groups:
            return blocks
        length = self.longest(blocks, len(blocks))
        return blocks if length == len(blocks) else blocks[:length]

    def hide_blocks(self, blocks: Set[int]) -> None:
        """Have no sequence begin behind these blocks of the first group, until the next call: a suspended step writes
        them."""
        self._hidden = blocks

    def longest(self, blocks: list[CachedBlock], length: int, elsewhere: Elsewhere = NOWHERE) -> int:
        """Return how many leading blocks, at most `length`, a sequence can begin behind: every group has there what it
        needs, in the cache or elsewhere. blocks: the cached chain; the first group has what follows it elsewhere.

        Each group's block is looked up once."""
        complete = [length] * len(self._layout.windows)
        while True:
            if self._states is not None:
                length = self._states.longest(blocks, length, elsewhere)
            visible = self._visible(blocks, length, elsewhere, complete) if self._has_windows else length
            if visible == length:
                return length
            length = visible

    def missing(self, blocks: list[CachedBlock], length: int) -> list[tuple[int, int]]:
        """Return (index, group) of what the cache lacks for a sequence to begin behind `length` blocks, the first
        group's first, the recurrent state last. blocks: the cached chain."""
        held, layout = len(blocks), self._layout
        found = [(index, 0) for index in range(held, length)]
        for group in range(1, len(layout.windows)):
            for index in range(layout.first_block(group, length * self._size), length):
                if index >= held or self._prefix.in_group(blocks[index].node, group) is None:
                    found.append((index, group))
        if self._states is not None and (length > held or self._states.slots.find(blocks[length - 1].node) is None):
            found.append((length - 1, len(layout.windows)))
        return found

    def device_blocks(self, blocks: list[CachedBlock], length: int) -> list[int]:
        """Return the device blocks of the cached chain `blocks`, and those of other groups that a sequence that begins
        behind `length` blocks needs."""
        found = [one.block for one in blocks]
        for group in range(1, len(self._layout.windows)):
            for index in range(self._layout.first_block(group, length * self._size), min(length, len(blocks))):
                other = self._prefix.in_group(blocks[index].node, group)
                found.append(None if other is None else other.block)
        return [block for block in found if block is not None]

    def demand(self, sequence: Sequence, lookup: Lookup, to_the_end: bool = False) -> BlockDemand:
        """Return the blocks that a sequence's admission takes. to_the_end: for all tokens to come, too."""
        hits, size, layout = self.hits(lookup), self._layout.size(sequence, to_the_end), self._layout
        if not self._has_windows:
            return BlockDemand([[*hits]], [size - len(hits)], size, hits)
        demand = BlockDemand([], [], size, [])
        computed = max(len(hits) * self._size, layout.external_tokens(sequence))
        for group in range(len(layout.windows)):
            first = layout.first_block(group, computed)
            first = first if group else min(first, len(hits))  # the next block is chained to the last hit
            found: list[CachedBlock | None] = [None] * first
            for cached in hits[first:]:
                found.append(self._prefix.in_group(cached.node, group) if group else cached)
            demand.found.append(found)
            demand.cached += [one for one in found if one is not None]
            demand.fresh.append(max(0, layout.length(group, first, size) - len(found)))
        return demand

    def num_taken(self, demand: BlockDemand) -> int:
        """Return how many of the available blocks a demand takes."""
        blocks = [cached.block for cached in demand.cached]
        return sum(demand.fresh) + blocks.count(None) + self._pool.count_evictable(blocks)

    def has_room(self, sequence: Sequence, lookup: Lookup, spare: int) -> bool:
        """Return whether a sequence's admission leaves `spare` blocks available.

        Only released blocks and a longer chain make more room. Without these the answer remains no, and the chain's
        blocks are not counted again."""
        return self.demand_with_room(sequence, lookup, spare) is not None

    def demand_with_room(
        self, sequence: Sequence, lookup: Lookup, spare: int, to_the_end: bool = False
    ) -> BlockDemand | None:
        """Return the demand of a sequence's admission; None where it would not leave `spare` blocks available."""
        length = len(lookup.chain.blocks)
        since = self._pool.num_released - lookup.num_released
        if length == lookup.length and not to_the_end and lookup.room + since < spare:
            return None
        demand = self.demand(sequence, lookup, to_the_end)
        room = self._pool.available - self.num_taken(demand)
        # Groups and checkpoints come and go, and hidden blocks are seen again.
        if not (to_the_end or self._has_windows or self._states is not None or self._hidden):
            lookup.room, lookup.num_released, lookup.length = room, self._pool.num_released, length
        return demand if room >= spare else None

    def wait_for_checkpoint(self, sequence: Sequence) -> bool:
        """Have a waiting sequence wait for the next plan, once, where the one under construction writes a checkpoint
        from which it could begin with fewer tokens to compute; return whether it does."""
        if self._states is None or (lookup := self.find(sequence)).waited:
            return False
        lookup.waited = self._states.is_coming(lookup.chain.blocks[len(self.hits(lookup)) :])
        return lookup.waited

    def forget(self, sequence: Sequence) -> None:
        """Forget the lookup of a sequence that no longer waits."""
        self._lookups.pop(sequence.number, None)

    # -- running sequences --------------------------------------------------------------------------------------
    def publish(self, sequence: Sequence) -> None:
        """Make a sequence's full blocks findable whose tokens are known and computed, or planned: steps run in order,
        and a step writes all keys and values of a layer before it reads any."""
        size, computed = self._size, sequence.num_computed
        if computed < (sequence.num_published_blocks + 1) * size:
            return  # as after most tokens
        full = (computed if computed < sequence.num_tokens else sequence.num_tokens) // size
        first = sequence.num_published_blocks
        if self._is_plain and first < full:
            tokens = sequence.token_slice(first * size, full * size)
            sequence.node = self._prefix.publish_chain(sequence.node, tokens, sequence.blocks[first:full])
            sequence.num_published_blocks = full
        while sequence.num_published_blocks < full:
            index = sequence.num_published_blocks
            tokens = sequence.token_slice(index * size, (index + 1) * size)
            block = sequence.blocks[index]
            nodes = [self._adopt(self._prefix.publish(sequence.node, tokens, block), block)]
            for group, table in enumerate(sequence.block_tables[1:], 1):
                if index >= sequence.num_freed_blocks[group]:
                    node = self._prefix.publish_in_group(nodes[0], group, table[index])
                    nodes.append(self._adopt(node, table[index]))
            if self._on_publish is not None and isinstance(sequence.node, int | SharedRoot):
                self._on_publish(nodes, sequence.node, tokens)
            sequence.node = nodes[0]
            sequence.num_published_blocks += 1
            if self._states is not None and sequence.state is not None:
                self._states.publish(sequence, sequence.num_published_blocks * size, nodes[0])
            if not self._among_requests:
                self._private.setdefault(self.root(sequence), []).extend(nodes)

    def publish_for_samples(self, sequence: Sequence) -> None:
        """Publish a sequence's blocks only where other samples of its request share them: where publishing is deferred
        (`defers`)."""
        if sequence.request.params.n > 1:
            self.publish(sequence)

    def unpublished(self, sequence: Sequence) -> range:
        """Return the indices of an ended sequence's full blocks whose publishing was deferred because no two requests
        have a block in common; their content will not be looked for. Empty where it was not deferred, or for another
        reason."""
        if not (self.defers and self._among_requests):
            return range(0)
        return range(sequence.num_published_blocks, min(sequence.num_computed, sequence.num_tokens) // self._size)

    def free_request(self, sample: Sequence) -> None:
        """End a request with its last sample: where requests share nothing, its cached blocks are dropped."""
        for node in self._private.pop(self.root(sample), ()):
            cached = self._prefix.at_node(node)
            if cached is None:
                continue
            self._prefix.drop(cached)
            if cached.block is not None and self._pool.is_evictable(cached.block):
                self._pool.discard(cached.block)

    # -- internal -----------------------------------------------------------------------------------------------
    def _visible(self, blocks: list[CachedBlock], length: int, elsewhere: Elsewhere, complete: list[int]) -> int:
        """Return how many leading blocks have, in every group, what its window shows to the next token.

        complete: Index in each group from which on no block before the last length is missing; changed."""

        def is_missing(index: int) -> bool:
            is_cached = index < held and self._prefix.in_group(blocks[index].node, group) is not None
            return not is_cached and not elsewhere(index, group)

        group, held = 1, len(blocks)
        while group < len(self._layout.windows):
            first = self._layout.first_block(group, length * self._size)
            missing = next(filter(is_missing, reversed(range(first, min(complete[group], length)))), None)
            complete[group] = min(first, complete[group]) if missing is None else missing
            # Without the block at `missing` no group can have more than what is before it: all are checked again.
            length, group = (length, group + 1) if missing is None else (missing, 1)
        return length

    def _adopt(self, node: int, block: int) -> int:
        """Return the node. Where a sequence computed cached content again, behind a checkpoint, and no sequence holds
        the cached block, its own block replaces that: the chain stays findable for as long as the sequence runs."""
        if self._states is not None:
            cached = self._prefix.at_node(node)
            if cached is not None and cached.block not in (None, block) and self._pool.is_evictable(cached.block):
                self._pool.discard(cached.block)
                self._prefix.move(cached, block, None)
        return node
