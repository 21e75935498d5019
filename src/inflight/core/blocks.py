"""The block pool: who holds which KV block, and which one is given away next.

Knows block ids, how many holders each has, and which unheld blocks still carry cached content. Not what the content
is (`prefix`), nor for whom it is held (`memory`). Every block is in exactly one of three states: free (no content),
held (one holder or more), idle (no holder, but its content may be found again). New blocks come from the free ones,
then from the idle ones, least recently released first: the free order is the eviction order.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable


class BlockPool:
    def __init__(self, num_blocks: int, on_evict: Callable[[int], None]):
        """on_evict(block) is called when an idle block loses its content."""
        self.num_blocks = num_blocks
        self._holders = [0] * num_blocks
        self._free = list(range(num_blocks - 1, -1, -1))  # taken from the end: low ids first
        self._idle: OrderedDict[int, None] = OrderedDict()
        self._on_evict = on_evict

    @property
    def free(self) -> int:
        return len(self._free)

    @property
    def idle(self) -> int:
        return len(self._idle)

    @property
    def held(self) -> int:
        return self.num_blocks - len(self._free) - len(self._idle)

    @property
    def available(self) -> int:
        """Blocks that `take` can give now."""
        return len(self._free) + len(self._idle)

    def holders(self, block: int) -> int:
        return self._holders[block]

    def is_idle(self, block: int) -> bool:
        return block in self._idle

    def take(self, count: int) -> tuple[int, ...]:
        """Blocks without content, held once each. The caller has made sure that `count` are available."""
        if count > self.available:
            raise RuntimeError(f"{count} blocks were asked for, but {self.available} are available")
        free, holders = self._free, self._holders
        taken = []
        for _ in range(count):
            if free:
                block = free.pop()
            else:
                block, _ = self._idle.popitem(last=False)
                self._on_evict(block)
            holders[block] = 1
            taken.append(block)
        return tuple(taken)

    def share(self, block: int) -> None:
        """One more holder for a block that is held or idle."""
        self._idle.pop(block, None)
        self._holders[block] += 1

    def release(self, blocks: Iterable[int], keeps_content: Callable[[int], bool]) -> None:
        """One holder less for each; a block nobody holds becomes idle if it keeps findable content, else free."""
        holders = self._holders
        for block in blocks:
            left = holders[block] - 1
            if left < 0:
                raise RuntimeError(f"block {block} was released more often than it was held")
            holders[block] = left
            if not left:
                if keeps_content(block):
                    self._idle[block] = None
                else:
                    self._free.append(block)

    def forget(self, block: int) -> None:
        """An idle block whose content cannot be found any more becomes free."""
        del self._idle[block]
        self._free.append(block)

    def forget_idle(self) -> None:
        """Every idle block becomes free; its content is no longer findable."""
        while self._idle:
            block, _ = self._idle.popitem(last=False)
            self._on_evict(block)
            self._free.append(block)
