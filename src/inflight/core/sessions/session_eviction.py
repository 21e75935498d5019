"""Eviction by what sessions are worth: blocks of the session that is worth least go first, ends of texts before roots.

Knows whose each block is that nobody holds, of the device or of the host. One that two sessions have had is everybody's
(a system prompt), and goes after all others, least recently released first; so does one that no session has had yet.
A tenant whose resting sessions hold more than its share of the blocks is worth less by as much, so that one tenant's
sessions do not push out another's.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Iterator

from inflight.core.sessions.session import Session
from inflight.core.sessions.session_table import SessionTable

LOOK = 0.1  # seconds between two looks at what all are worth


class SessionEviction:
    """An `EvictionOrder`. Owners are sessions."""

    def __init__(self, table: SessionTable):
        self._table = table
        self._of: dict[int, Session | None] = {}  # whose the content of a block is, held or not; None: everybody's
        self._blocks: dict[Session, OrderedDict[int, None]] = {}
        self._shared: OrderedDict[int, None] = OrderedDict()
        self._held_by: Counter[str] = Counter()  # blocks of tenants
        self._count = 0
        self._next: list[Session] = []  # those that are worth least, the least last
        self._looked = -1.0  # when

    def __len__(self) -> int:
        return self._count

    def __contains__(self, block: object) -> bool:
        if not isinstance(block, int):
            return False
        owner = self._of.get(block)
        return block in (self._shared if owner is None else self._blocks.get(owner, ()))

    def __iter__(self) -> Iterator[int]:
        for session in sorted(self._blocks, key=self._worth):
            yield from self._blocks[session]
        yield from self._shared

    def add(self, block: int, owner: object) -> None:
        if isinstance(owner, Session):
            self._of[block] = owner if self._of.get(block, owner) is owner else None
        mine = self._of.get(block)
        self._count += 1
        if mine is None:
            self._shared[block] = None
        else:
            self._blocks.setdefault(mine, OrderedDict())[block] = None
            self._held_by[mine.tenant] += 1
            mine.resting += 1

    def discard(self, block: int) -> None:
        """Its content stays whose it was: it may be held by another session now."""
        if block in self:
            self._take(block)

    def forget(self, block: int) -> None:
        """Its content is another one."""
        self._of.pop(block, None)

    def coming(self) -> Iterator[int]:
        self._look()
        yielded = set()
        for session in reversed(self._next):
            if not self._has_changed(session):
                yielded.add(session)
                yield from self._blocks[session]
        for session in sorted((one for one in self._blocks if one not in yielded), key=self._worth):
            yield from self._blocks[session]
        yield from self._shared

    def pop(self) -> int:
        session = self._least()
        block = next(iter(self._shared if session is None else self._blocks[session]))
        self._take(block)
        return block

    def clear(self) -> None:
        for session, blocks in self._blocks.items():
            session.resting -= len(blocks)
        self._of.clear()
        self._blocks.clear()
        self._shared.clear()
        self._held_by.clear()
        self._count, self._next = 0, []

    def owner(self, block: int) -> Session | None:
        """Whose content it has, as far as that is one session's."""
        return self._of.get(block)

    def resting(self, session: Session) -> set[int]:
        """Blocks that are its own, and held by nobody."""
        return set(self._blocks.get(session, ()))

    def _take(self, block: int) -> None:
        owner = self._of.get(block)
        self._count -= 1
        if owner is None:
            del self._shared[block]
            return
        del self._blocks[owner][block]
        owner.resting -= 1
        self._held_by[owner.tenant] -= 1
        if not self._held_by[owner.tenant]:
            del self._held_by[owner.tenant]
        if not self._blocks[owner]:
            del self._blocks[owner]

    def _least(self) -> Session | None:
        """The session that is worth least; None: there are none but everybody's blocks."""
        self._look()
        return self._next[-1] if self._next else None

    def _look(self) -> None:
        """Sort the sessions anew, where that was done too long ago, or none is left of those that were sorted."""
        while self._next and self._has_changed(self._next[-1]):
            self._next.pop()
        if self._blocks and (not self._next or self._table.now - self._looked > LOOK):
            self._looked = self._table.now
            self._next = sorted(self._blocks, key=self._worth, reverse=True)

    def _has_changed(self, session: Session) -> bool:
        """Whether it has nothing to give since they were last looked at, or has had a turn."""
        return session not in self._blocks or (session.rests_since or 0.0) > self._looked

    def _worth(self, session: Session) -> float:
        share = self._count / max(1, len(self._held_by))
        return self._table.worth(session) * min(1.0, share / self._held_by[session.tenant])
