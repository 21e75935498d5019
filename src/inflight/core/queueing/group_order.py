"""Order of the groups in a queue, for policies whose group ranks only rise.

A heap has for each group its key when it was last read. Since keys rise, that is a lower bound, and only the keys at
the top of the heap are read again: a choice takes a time that grows with the groups that were served since the last
one, and not with those that wait. A key may fall when a sequence of the group comes, leaves or ends: then `changed` is
called.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable, Hashable
from typing import Any

Key = tuple[Any, ...]


class GroupOrder:
    def __init__(self, key: Callable[[Hashable], Key | None]):
        """Start without groups.

        Args:
            key: Returns the present key of a group, unique among the groups; None where none of its sequences wait.
        """
        self._key = key
        self._heap: list[tuple[Key, int, Hashable]] = []
        self._valid: dict[Hashable, tuple[Key, int]] = {}  # the entry of each group that counts; others are passed over
        self._seq = itertools.count()

    def changed(self, group: Hashable) -> None:
        """Take note that the key of a group may have fallen."""
        key, known = self._key(group), self._valid.get(group)
        if key is None:
            self._valid.pop(group, None)
        elif known is None or key < known[0]:
            self._push(group, key)

    def first(self) -> Hashable | None:
        """Return the group with the least key; None where there is none."""
        while self._heap:
            old, seq, group = self._heap[0]
            if self._valid.get(group) != (old, seq):
                heapq.heappop(self._heap)
                continue
            key = self._key(group)
            if key == old:
                return group
            heapq.heappop(self._heap)
            del self._valid[group]
            if key is not None:
                self._push(group, key)
        return None

    def clear(self) -> None:
        self._heap.clear()
        self._valid.clear()

    def _push(self, group: Hashable, key: Key) -> None:
        entry = key, next(self._seq)
        self._valid[group] = entry
        heapq.heappush(self._heap, (*entry, group))
