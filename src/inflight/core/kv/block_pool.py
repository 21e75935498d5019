"""The block pool: reference counts of KV blocks, and the order in which they are evicted.

Every block is free (no content), held (one reference or more) or evictable (no reference, in the order of eviction; its
content may be findable). New blocks are taken from the free ones, then from the evictable ones, least recently released
first unless another `EvictionOrder` is given.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Iterator
from itertools import islice


class EvictionOrder:
    """Blocks without references, in the order of eviction: least recently released first.

    Iterating yields them in that order as of now. `SessionEviction` has another order.
    """

    def __init__(self) -> None:
        self._blocks: OrderedDict[int, list[int] | None] = OrderedDict()  # a run: under its first block
        self._num_behind = 0  # blocks of runs behind their first ones

    def __len__(self) -> int:
        return len(self._blocks) + self._num_behind

    def __contains__(self, block: object) -> bool:
        return block in self._blocks

    def __iter__(self) -> Iterator[int]:
        for block, run in self._blocks.items():
            yield from (block,) if run is None else run

    def add(self, block: int, owner: object) -> None:
        """Add a block that lost its last reference. owner: the session that held it; None: unknown, or unchanged."""
        self._blocks[block] = None

    def extend(self, run: list[int]) -> None:
        """Add blocks that lost their last references, in this order, of which none is asked for or discarded alone."""
        if run:
            self._blocks[run[0]] = run
            self._num_behind += len(run) - 1

    def owner(self, block: int) -> object:
        """Return the session that owns a block's content; None: several, or the order ignores owners."""
        return None

    def discard(self, block: int) -> None:
        """Remove a block that is held again or has lost its content; ignored if absent."""
        self._blocks.pop(block, None)

    def forget(self, block: int) -> None:
        """Forget the owner of a block whose content is replaced."""

    def coming(self) -> Iterator[int]:
        """Yield the blocks that successive calls of `pop` would return."""
        return iter(self)

    def pop(self) -> int:
        """Remove and return the next block to evict; its owner is known until `forget`."""
        return self.take(1)[0]

    def take(self, count: int) -> list[int]:
        """Remove and return the next blocks to evict."""
        taken: list[int] = []
        while (missing := count - len(taken)) > 0:
            block, run = self._blocks.popitem(last=False)
            if run is None:
                taken.append(block)
                continue
            taken += run[:missing]
            self._num_behind -= len(run) - 1
            if rest := run[missing:]:
                self.extend(rest)
                self._blocks.move_to_end(rest[0], last=False)
        return taken

    def clear(self) -> None:
        self._blocks.clear()
        self._num_behind = 0


class BlockPool:
    def __init__(
        self,
        num_blocks: int,
        on_evict: Callable[[int], None],
        cached: Collection[int],
        order: EvictionOrder | None = None,
    ):
        """Create a pool of free blocks.

        Args:
            num_blocks: Number of blocks.
            on_evict: Called with each evictable block that is about to be reused.
            cached: Blocks whose content can be found, as of any time: they become evictable instead of free.
            order: Order of eviction.
        """
        self.num_blocks = num_blocks
        self.available = num_blocks  # without a reference: free or evictable, as `allocate` can return them now
        self.num_released = 0  # last references given back since the start
        self._ref_counts = [0] * num_blocks
        self._free: list[int] = []  # that had a reference before; taken from the end
        self._next_unused = 0  # this block and those behind it never had one; taken when none of these is left
        self._evictable = EvictionOrder() if order is None else order
        self._has_owners = order is not None
        self._on_evict = on_evict
        self._cached = cached
        self._num_shared = 0  # references beyond the first of each block

    @property
    def free(self) -> int:
        return len(self._free) + self.num_blocks - self._next_unused

    @property
    def evictable(self) -> int:
        return len(self._evictable)

    @property
    def held(self) -> int:
        """Blocks that have a holder."""
        return self.num_blocks - self.available

    def ref_counts(self) -> tuple[int, ...]:
        return tuple(self._ref_counts)

    def evictable_blocks(self) -> tuple[int, ...]:
        """Return the evictable blocks in the order of eviction."""
        return tuple(self._evictable)

    def ref_count(self, block: int) -> int:
        return self._ref_counts[block]

    def is_evictable(self, block: int) -> bool:
        return block in self._evictable

    def owner(self, block: int) -> object:
        """Return the owner of a block's content, as far as the order of eviction knows it."""
        return self._evictable.owner(block)

    def next_evicted(self, count: int, spared: Iterable[int | None] = ()) -> list[int]:
        """Return the evictable blocks that `allocate(count)` would evict if the blocks `spared` were held."""
        if count <= self.free:
            return []
        held = set(spared)
        return list(islice((block for block in self._evictable.coming() if block not in held), count - self.free))

    def count_evictable(self, blocks: Iterable[int | None]) -> int:
        """Return how many of these blocks are evictable; None counts as none."""
        return sum(map(self._evictable.__contains__, blocks))

    def allocate(self, count: int) -> tuple[int, ...]:
        """Return `count` available blocks, now without content and with one reference each."""
        free, ref_counts = self._free, self._ref_counts
        if count > self.available:
            raise RuntimeError(f"{count} blocks were asked for, but {self.available} are available")
        taken = free[: -count - 1 : -1]
        del free[len(free) - len(taken) :]
        if len(taken) < count:
            unused = range(self._next_unused, min(self._next_unused + count - len(taken), self.num_blocks))
            self._next_unused += len(unused)
            taken += unused
        if self._has_owners:
            self._allocate_owned(taken, count)
        elif len(taken) < count:
            evicted = self._evictable.take(count - len(taken))
            for block in evicted:
                if block in self._cached:  # else it was retired
                    self._on_evict(block)
            taken += evicted
        for block in taken:
            ref_counts[block] = 1
        self.available -= count
        return tuple(taken)

    def _allocate_owned(self, taken: list[int], count: int) -> None:
        """Forget the owners of free blocks that were taken; evict the others one by one: each may change the order."""
        for block in taken:
            self._evictable.forget(block)
        while len(taken) < count:
            block = self._evictable.pop()
            if block in self._cached:
                self._on_evict(block)
            self._evictable.forget(block)
            taken.append(block)

    def acquire(self, block: int) -> None:
        """Add a reference to a block that is held or evictable."""
        self._evictable.discard(block)
        is_shared = self._ref_counts[block] > 0
        self._ref_counts[block] += 1
        self._num_shared += is_shared
        self.available -= not is_shared

    def release(self, blocks: Iterable[int], owner: object = None) -> None:
        """Remove a reference from each block. owner: the session that held them, for the order of eviction."""
        if self._num_shared or self._cached:
            self._release_each(blocks, owner)
            return
        ref_counts, released = self._ref_counts, list(blocks)
        for block in released:
            if ref_counts[block] != 1:
                raise _released_too_often(block)
            ref_counts[block] = 0
        self._free += released
        self.available += len(released)
        self.num_released += len(released)

    def _release_each(self, blocks: Iterable[int], owner: object) -> None:
        """Release blocks that may be shared, or have content that can be found."""
        ref_counts, cached = self._ref_counts, self._cached
        for block in blocks:
            left = ref_counts[block] - 1
            if left < 0:
                raise _released_too_often(block)
            ref_counts[block] = left
            if left:
                self._num_shared -= 1
                continue
            self.available += 1
            self.num_released += 1
            if block in cached:
                self._evictable.add(block, owner)
            else:
                self._free.append(block)

    def retire(self, blocks: list[int]) -> None:
        """Release blocks whose content will not be looked for: they are evictable, in the order of their release, but
        not findable."""
        ref_counts = self._ref_counts
        for block in blocks:
            if ref_counts[block] != 1:
                raise _released_too_often(block)
            ref_counts[block] = 0
        self._evictable.extend(blocks)
        self.available += len(blocks)
        self.num_released += len(blocks)

    def discard(self, block: int) -> None:
        """Free an evictable block whose content was dropped from the cache."""
        self._evictable.discard(block)
        self._free.append(block)

    def discard_all(self) -> None:
        """Free all evictable blocks; the caller drops their content from the cache."""
        self._free.extend(self._evictable)
        self._evictable.clear()


def _released_too_often(block: int) -> RuntimeError:
    return RuntimeError(f"block {block} was released more often than it was held")
