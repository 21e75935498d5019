"""Evict the blocks of the session with the least valuable blocks first, ends of texts before their roots.

A block of two sessions is shared (a system prompt): it is evicted after all others, least recently released first, and
so is a block that no session has had yet. A tenant that has more than its share of the idle blocks has the
value of its sessions' blocks reduced by as much, so that it does not push out other tenants' sessions.

Values change with time. Sessions are ranked by the value that was computed last: when they began or ended a turn, and
every RERANK_INTERVAL_S seconds for the RERANK_BATCH that were valued longest ago, so that the cost of a look-up does
not depend on how many there are.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import Counter, OrderedDict
from collections.abc import Iterator
from itertools import islice
from typing import NamedTuple

from inflight.core.kv.sessions import Session, SessionTable

RERANK_INTERVAL_S, RERANK_BATCH = 0.1, 32


class _Rank(NamedTuple):
    """seq: unique, so that sessions are never compared."""

    value: float
    seq: int
    session: Session


class SessionEviction:
    """An `EvictionOrder` whose owners are sessions; of the device's blocks, or of the host's."""

    def __init__(self, table: SessionTable):
        self._table = table
        table.watchers.append(self._turn_changed)
        self._owners: dict[int, Session | None] = {}  # of each block's content, held or not; None: shared
        self._idle: dict[Session, OrderedDict[int, None]] = {}  # blocks that no sequence holds
        self._shared: OrderedDict[int, None] = OrderedDict()
        self._num_by_tenant: Counter[str] = Counter()  # idle blocks of tenants' sessions
        self._num_idle = 0
        self._ranked: list[_Rank] = []  # least valuable first
        self._rank_of: OrderedDict[Session, _Rank] = OrderedDict()  # least recently valued first
        self._reranked_at = -1.0
        self._seq = 0

    def __len__(self) -> int:
        return self._num_idle

    def __contains__(self, block: object) -> bool:
        if not isinstance(block, int):
            return False
        owner = self._owners.get(block)
        return block in (self._shared if owner is None else self._idle.get(owner, ()))

    def __iter__(self) -> Iterator[int]:
        for session in sorted(self._idle, key=self._value):
            yield from self._idle[session]
        yield from self._shared

    def add(self, block: int, owner: object) -> None:
        if isinstance(owner, Session):
            self._owners[block] = owner if self._owners.get(block, owner) is owner else None
        session = self._owners.get(block)
        self._num_idle += 1
        if session is None:
            self._shared[block] = None
            return
        self._idle.setdefault(session, OrderedDict())[block] = None
        self._num_by_tenant[session.tenant] += 1
        session.num_idle_blocks += 1
        if session not in self._rank_of:
            self._rank(session)

    def discard(self, block: int) -> None:
        """Take out a block that is held again; its content keeps its owner."""
        if block in self:
            self._take(block)

    def forget(self, block: int) -> None:
        """Forget the owner of a block whose content is replaced."""
        self._owners.pop(block, None)

    def coming(self) -> Iterator[int]:
        self._refresh()
        for rank in self._ranked:
            yield from self._idle[rank.session]
        yield from self._shared

    def pop(self) -> int:
        self._refresh()
        block = next(iter(self._idle[self._ranked[0].session] if self._ranked else self._shared))
        self._take(block)
        return block

    def clear(self) -> None:
        for session, blocks in self._idle.items():
            session.num_idle_blocks -= len(blocks)
        for kept in (self._owners, self._idle, self._shared, self._num_by_tenant, self._rank_of):
            kept.clear()
        self._ranked.clear()
        self._num_idle = 0

    def owner(self, block: int) -> Session | None:
        """Return the session that owns a block's content; None where it is shared, or of no session yet."""
        return self._owners.get(block)

    def idle_blocks(self, session: Session) -> Iterator[int]:
        """Yield the blocks that are this session's own and that no sequence holds."""
        return iter(self._idle.get(session, ()))

    def _take(self, block: int) -> None:
        owner = self._owners.get(block)
        self._num_idle -= 1
        if owner is None:
            del self._shared[block]
            return
        del self._idle[owner][block]
        owner.num_idle_blocks -= 1
        self._num_by_tenant[owner.tenant] -= 1
        if not self._num_by_tenant[owner.tenant]:
            del self._num_by_tenant[owner.tenant]
        if not self._idle[owner]:
            del self._idle[owner]
            self._unrank(owner)

    def _turn_changed(self, session: Session) -> None:
        if session in self._rank_of:
            self._rank(session)

    def _refresh(self) -> None:
        """Value the next sessions again, if the last time was long enough ago."""
        if self._table.now - self._reranked_at <= RERANK_INTERVAL_S:
            return
        self._reranked_at = self._table.now
        for session in list(islice(self._rank_of, RERANK_BATCH)):
            self._rank(session)

    def _rank(self, session: Session) -> None:
        self._unrank(session)
        self._seq += 1
        rank = self._rank_of[session] = _Rank(self._value(session), self._seq, session)
        insort(self._ranked, rank)

    def _unrank(self, session: Session) -> None:
        rank = self._rank_of.pop(session, None)
        if rank is not None:
            del self._ranked[bisect_left(self._ranked, rank)]

    def _value(self, session: Session) -> float:
        fair_share = self._num_idle / max(1, len(self._num_by_tenant))
        return self._table.block_value(session) * min(1.0, fair_share / self._num_by_tenant[session.tenant])
