"""The cache journal: what has changed in the prefix cache since somebody asked last.

Knows the order of the changes. There is one only where somebody mirrors the cache, and takes it after every step.
"""

from __future__ import annotations

from inflight.core.types.kv_blocks import CacheChange


class CacheJournal:
    def __init__(self) -> None:
        self._changes: list[CacheChange] = []

    def note(self, change: CacheChange) -> None:
        self._changes.append(change)

    def take(self) -> list[CacheChange]:
        """In the order in which they happened; the next call tells of those that come."""
        changes, self._changes = self._changes, []
        return changes
