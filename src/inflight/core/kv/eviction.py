"""The order of eviction: which of the blocks that nobody holds loses its content first, on the device or on the host.

Knows block ids and the order in which they were released; `session_eviction` has another order.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from typing import Protocol


class EvictionOrder(Protocol):
    """Order blocks that are not held; iterating yields them in the order in which they would go by now."""

    def __len__(self) -> int: ...

    def __contains__(self, block: object) -> bool: ...

    def __iter__(self) -> Iterator[int]: ...

    def add(self, block: int, owner: object) -> None:
        """Nobody holds it any more; owner: for whom it was held last, None: that is no news."""

    def owner(self, block: int) -> object:
        """Whose its content is; None: nobody's in particular, or it makes no difference."""

    def discard(self, block: int) -> None:
        """It is held again, or its content is forgotten; harmless where it is not among them."""

    def forget(self, block: int) -> None:
        """Its content is to be another one."""

    def coming(self) -> Iterator[int]:
        """Yield the blocks that `pop` would take one after the other, if nothing else changes."""

    def pop(self) -> int:
        """The next one goes; whose it was is known until it is forgotten."""

    def clear(self) -> None: ...


class LeastRecentlyReleased:
    """First released, first to go."""

    def __init__(self) -> None:
        self._blocks: OrderedDict[int, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._blocks)

    def __contains__(self, block: object) -> bool:
        return block in self._blocks

    def __iter__(self) -> Iterator[int]:
        return iter(self._blocks)

    def add(self, block: int, owner: object) -> None:
        self._blocks[block] = None

    def owner(self, block: int) -> object:
        return None

    def discard(self, block: int) -> None:
        self._blocks.pop(block, None)

    def forget(self, block: int) -> None:
        """Whose it was makes no difference."""

    def coming(self) -> Iterator[int]:
        return iter(self._blocks)

    def pop(self) -> int:
        return self._blocks.popitem(last=False)[0]

    def clear(self) -> None:
        self._blocks.clear()
