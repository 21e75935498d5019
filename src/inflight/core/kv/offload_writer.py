"""Writes cached blocks and checkpoints of recurrent state to a tier, beside the steps.

A unit is a block of a KV group, or a checkpoint at a block's end. It may be written once the step that computes it is
committed; what a failed step leaves must never be stored. A later step may compute the same content again, into another
block or slot: then the unit waits for that step.
"""

from __future__ import annotations

from collections import deque
from functools import partial
from typing import cast

from inflight.core.kv.block_pool import BlockPool
from inflight.core.kv.prefix_cache import CachedBlock, PrefixCache
from inflight.core.kv.state_checkpoints import CheckpointSlots
from inflight.core.kv.transfers import Transfers
from inflight.core.types.kv_blocks import KVStore, SharedRoot, block_hash, group_hash

WRITE_DIVISOR = 8  # at most this part of the pool is being written
WRITE_BATCH = 16  # blocks of a transfer at most: each is held until the last is stored

Parent = int | SharedRoot


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
        self._computing: dict[int, int] = {}  # node → last step in flight that computes its block or checkpoint, rising
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
        for node in nodes:
            self.postpone(node)
        before = self._hashes.get(parent) if isinstance(parent, int) else parent
        self._add_planned(nodes[0], before, token_ids)
        for node in nodes[1:]:
            self._add_planned(node, self._hashes.get(nodes[0]))

    def add_checkpoint(self, node: int) -> None:
        """Add the checkpoint at a block's end, which a plan writes: the one under construction, or one before."""
        if node in self._hashes:
            self._planned.append((self._step, node))

    def postpone(self, node: int) -> None:
        """Write a node's block and checkpoint once the last plan is computed, which writes one of them."""
        self._computing.pop(node, None)
        self._computing[node] = self._step

    def add_loaded(self, cached: CachedBlock) -> None:
        """Add a block whose content was loaded."""
        parent = cached.key[0]
        before = self._hashes.get(parent) if isinstance(parent, int) else cast(SharedRoot, parent)
        self._hash(cached.node, before, () if cached.group else cached.token_ids)
        if cached.node in self._hashes:
            self._ready.append(cached)

    def add_loaded_checkpoint(self, node: int) -> None:
        """Add a checkpoint whose content was loaded, as from a peer."""
        if node in self._hashes:
            self._ready.append(node)

    def on_drop(self, node: int) -> None:
        """Forget a node that was dropped from the cache, and its checkpoint."""
        self._slots.drop(node)
        self._hashes.pop(node, None)
        self._computing.pop(node, None)

    def forget_all(self) -> None:
        """Forget what steps in flight compute, after one failed."""
        self._planned.clear()
        self._hashes.clear()
        self._computing.clear()

    def begin_step(self, step: int) -> None:
        """Begin to write ready units with the plan of this step."""
        self._step = step
        postponed: list[CachedBlock | int] = []
        store = self._store
        while store is not None and self._ready and self._in_flight < self._max_in_flight:
            units = self._next_units(store, postponed)
            if units:
                self._write(store, units)
        self._ready += postponed

    def commit_step(self, step: int) -> None:
        """Note that the plans up to this step are computed."""
        while self._computing and self._computing[node := next(iter(self._computing))] <= step:
            del self._computing[node]
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

    def _next_units(self, store: KVStore, postponed: list[CachedBlock | int]) -> list[tuple[int, int, bytes]]:
        """Take ready units for one transfer: (group, block, hash) of each. A checkpoint, which is large, goes alone.

        postponed: Gets the units that cannot be written yet, since they are being loaded, or computed again."""
        units: list[tuple[int, int, bytes]] = []
        while self._ready and len(units) < min(WRITE_BATCH, self._max_in_flight - self._in_flight):
            one = self._ready[0]
            if isinstance(one, int) and units:
                break
            self._ready.popleft()
            if isinstance(one, int):
                node, group, block, is_loading = one, self._state_group, self._slots.find(one), False
                first = self._hashes.get(one)
                unit_hash = None if first is None else group_hash(first, self._state_group)
            else:
                node, group, block, is_loading = one.node, one.group, one.block, bool(one.loading)
                unit_hash = None if one.lost else self._hashes.get(one.node)
            if unit_hash is None or block is None:
                self.num_missed += 1
            elif is_loading or node in self._computing:  # it may have been on the host
                postponed.append(one)
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
