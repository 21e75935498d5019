"""Answers that are kept to draft for others, by salt, the oldest forgotten first.

Knows whose text may draft for whom, and what all of it takes; not how much it may take, nor how drafts are found.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from inflight.execution.drafters.suffix_index import IndexKind, SuffixIndex


@dataclass(slots=True, eq=False)
class Shelf:
    """The answers of one salt. count: so many."""

    salt: str
    index: SuffixIndex
    count: int = 0


class Answers:
    def __init__(self, kind: IndexKind):
        self._kind = kind
        self._shelves: dict[str, Shelf] = {}
        self._order: deque[Shelf] = deque()  # of each answer, oldest first, where it is
        self._tokens = 0
        self._indexes = 0

    def __len__(self) -> int:
        return len(self._order)

    @property
    def nbytes(self) -> int:
        """At most."""
        return self._indexes * self._kind.bytes_alone + self._tokens * self._kind.bytes_per_token

    def of(self, salt: str) -> SuffixIndex | None:
        """Return the index of a salt's answers; None where there is none."""
        shelf = self._shelves.get(salt)
        return shelf.index if shelf is not None else None

    def add(self, salt: str, token_ids: Sequence[int]) -> None:
        """token_ids: at least one."""
        shelf = self._shelves.get(salt)
        if shelf is None or shelf.index.room <= len(token_ids):  # one that is worn out is forgotten with its answers
            shelf = self._shelves[salt] = Shelf(salt, self._kind())
            self._indexes += 1
        shelf.index.append(token_ids)
        shelf.index.end_text()
        shelf.count += 1
        self._tokens += len(token_ids)
        self._order.append(shelf)

    def forget_oldest(self) -> None:
        shelf = self._order.popleft()
        self._tokens -= shelf.index.drop_text()
        shelf.count -= 1
        if shelf.count == 0:
            self._indexes -= 1
            if self._shelves.get(shelf.salt) is shelf:
                del self._shelves[shelf.salt]
