"""The block pool: who holds which KV block, and which one is given away next.

Knows block ids, reference counts, and which unheld blocks still carry cached content. Not what the content is
(`prefix_cache`), nor for whom it is held (`manager`). Every block is in exactly one of three states: free (no content),
held (one reference or more), evictable (none, but its content may be found again). New blocks come from the free ones,
then from the evictable ones, in the order that `eviction` says: least recently released first, unless another is given.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import islice

from inflight.core.kv.eviction import EvictionOrder, LeastRecentlyReleased


class BlockPool:
    def __init__(self, num_blocks: int, on_evict: Callable[[int], None], order: EvictionOrder | None = None):
        """on_evict(block) is called when an evictable block loses its content."""
        self.num_blocks = num_blocks
        self.given_up = 0  # blocks whose last holder released them, so far
        self._ref_counts = [0] * num_blocks
        self._free = list(range(num_blocks - 1, -1, -1))  # taken from the end: low ids first
        self._evictable: EvictionOrder = LeastRecentlyReleased() if order is None else order
        self._on_evict = on_evict

    @property
    def free(self) -> int:
        return len(self._free)

    @property
    def evictable(self) -> int:
        return len(self._evictable)

    @property
    def held(self) -> int:
        return self.num_blocks - len(self._free) - len(self._evictable)

    @property
    def available(self) -> int:
        """Blocks that `allocate` can give now."""
        return len(self._free) + len(self._evictable)

    def ref_counts(self) -> tuple[int, ...]:
        """Of all blocks, as they are now."""
        return tuple(self._ref_counts)

    def evictable_blocks(self) -> tuple[int, ...]:
        """In the order in which they are taken."""
        return tuple(self._evictable)

    def ref_count(self, block: int) -> int:
        return self._ref_counts[block]

    def is_evictable(self, block: int) -> bool:
        return block in self._evictable

    def owner(self, block: int) -> object:
        """Whose its content is, as far as the order of eviction knows."""
        return self._evictable.owner(block)

    def next_evicted(self, count: int, spared: Iterable[int | None]) -> list[int]:
        """Those of the evictable blocks that `allocate` would take for so many, if these were held."""
        held = set(spared)
        return list(
            islice((block for block in self._evictable.coming() if block not in held), max(0, count - self.free))
        )

    def count_evictable(self, blocks: Iterable[int | None]) -> int:
        """How many of these are; None counts as none."""
        return sum(map(self._evictable.__contains__, blocks))

    def allocate(self, count: int) -> tuple[int, ...]:
        """Blocks without content, held once each. The caller has made sure that `count` are available."""
        if count > self.available:
            raise RuntimeError(f"{count} blocks were asked for, but {self.available} are available")
        free, ref_counts = self._free, self._ref_counts
        taken = []
        for _ in range(count):
            if free:
                block = free.pop()
            else:
                block = self._evictable.pop()
                self._on_evict(block)
            self._evictable.forget(block)
            ref_counts[block] = 1
            taken.append(block)
        return tuple(taken)

    def acquire(self, block: int) -> None:
        """One more reference to a block that is held or evictable."""
        self._evictable.discard(block)
        self._ref_counts[block] += 1

    def release(self, blocks: Iterable[int], keeps_content: Callable[[int], bool], owner: object = None) -> None:
        """One reference less to each; a block with none becomes evictable if it keeps findable content, else free.
        owner: for whom they were held, where that matters to the order of eviction."""
        ref_counts = self._ref_counts
        for block in blocks:
            left = ref_counts[block] - 1
            if left < 0:
                raise RuntimeError(f"block {block} was released more often than it was held")
            ref_counts[block] = left
            if not left:
                self.given_up += 1
                if keeps_content(block):
                    self._evictable.add(block, owner)
                else:
                    self._free.append(block)

    def evict(self, block: int) -> None:
        """An evictable block whose content cannot be found any more becomes free."""
        self._evictable.discard(block)
        self._free.append(block)

    def evict_all(self) -> None:
        """Every evictable block becomes free. Nobody is told: whoever knows of any content forgets all of it."""
        self._free.extend(self._evictable)
        self._evictable.clear()
