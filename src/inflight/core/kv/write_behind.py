"""Write-behind: blocks of the prefix cache are kept in a tier as well, while steps go on.

Knows which blocks that can be found are not in the tier yet, and by which names they would be (`types.kv_blocks`). A
block may be stored once the step that computes it has been committed: before, its content is a promise, and what a
failed step leaves must never be kept. While a transfer is out it holds its blocks; so only a share of the pool is out
at a time, and what is given away before its turn has come is not kept. Decides neither what is worth keeping (the sink
does) nor what is brought back (`prefix_loader`).
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from functools import partial

from inflight.core.kv.block_pool import BlockPool
from inflight.core.kv.prefix_cache import CachedBlock, PrefixCache
from inflight.core.kv.transfers import Transfers
from inflight.core.types.kv_blocks import KVStore, SharedRoot

SHARE_OUT = 8  # of the pool one block in so many is being stored at most
BATCH = 16  # blocks of a transfer, at most: each is held until the last is stored


@dataclass(slots=True)
class WriteCounts:
    """Blocks since the engine began. missed: given away before they were stored."""

    stored: int = 0
    failed: int = 0
    missed: int = 0


class WriteBehind:
    def __init__(self, pool: BlockPool, prefix: PrefixCache, transfers: Transfers, sink: KVStore):
        self._prefix, self._transfers, self._sink = prefix, transfers, sink
        self._most_out = max(1, pool.num_blocks // SHARE_OUT)
        self._names: dict[int, bytes] = {}  # of nodes that can be found
        self._promised: deque[tuple[int, CachedBlock]] = deque()  # the step that computes them, and blocks, in order
        self._ready: deque[CachedBlock] = deque()
        self._step = -1  # that was planned last
        self._out = 0  # blocks
        self.counts = WriteCounts()

    @property
    def waiting(self) -> bool:
        """Whether anything may be stored and is not being stored."""
        return bool(self._ready)

    # -- what can be found --------------------------------------------------------------------------------------
    def published(self, node: int, before: int | SharedRoot, token_ids: tuple[int, ...]) -> None:
        """A block can be found that the plan under construction computes, or one in flight; or what it holds is on its
        way to another block, which holds it only when it is `loaded`."""
        place = self._named(node, before, token_ids)
        if place is not None and not place.loading:
            self._promised.append((self._step, place))

    def loaded(self, node: int, before: int | SharedRoot, token_ids: tuple[int, ...]) -> None:
        """A block can be found that was brought, and holds what it should."""
        self._named(node, before, token_ids)
        place = self._prefix.block_of(node)
        if node in self._names and place is not None:
            self._ready.append(place)

    def dropped(self, node: int) -> None:
        """It can be found no more."""
        self._names.pop(node, None)

    def forget_all(self) -> None:
        """What steps in flight have promised may never come."""
        self._promised.clear()
        self._names.clear()

    # -- steps --------------------------------------------------------------------------------------------------
    def begin(self, step: int) -> None:
        """With the plan of this step, as much as may be out."""
        self._step = step
        coming: list[CachedBlock] = []
        while self._ready and self._out < self._most_out:
            places: list[CachedBlock] = []
            names: list[bytes] = []
            while self._ready and len(places) < min(BATCH, self._most_out - self._out):
                place = self._ready.popleft()
                name = self._names.get(place.node)
                if place.lost or place.block is None or name is None:
                    self.counts.missed += 1
                elif place.loading:  # it was given away since, and comes back from the host
                    coming.append(place)
                elif self._sink.wants(name):
                    places.append(place)
                    names.append(name)
            if places:
                self._store(places, names)
        self._ready += coming

    def committed(self, step: int) -> None:
        """All that the plans up to this one promised is computed."""
        while self._promised and self._promised[0][0] <= step:
            self._ready.append(self._promised.popleft()[1])

    # -- inside -------------------------------------------------------------------------------------------------
    def _named(self, node: int, before: int | SharedRoot, token_ids: tuple[int, ...]) -> CachedBlock | None:
        """None: it has its name already, or can have none."""
        chained = self._names.get(before) if isinstance(before, int) else before
        if node in self._names or chained is None:
            return None
        name = self._sink.name(chained, token_ids)
        if name is None:
            return None
        self._names[node] = name
        return self._prefix.block_of(node)

    def _store(self, places: list[CachedBlock], names: list[bytes]) -> None:
        blocks = tuple(place.block for place in places if place.block is not None)
        numbers = tuple(int.from_bytes(name) for name in names)
        self._out += len(blocks)
        self._transfers.begin("store", self._sink.tier, blocks, numbers, partial(self._stored, len(blocks)))

    def _stored(self, blocks: int, done: bool) -> None:
        self._out -= blocks
        self.counts.stored += blocks * done
        self.counts.failed += blocks * (not done)
