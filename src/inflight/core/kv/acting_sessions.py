"""Acting sessions: those that rest for a moment, and the blocks that calls leave to them.

They are looked at once a plan, however many calls ask: sorted by when they began, with the sums of their blocks. In the
plan itself sessions begin turns and lose blocks, at most as many as the plan allocates: what they have lost is
subtracted. A tenant whose sessions have lost all still counts for the shares of this plan.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter, defaultdict

from inflight.core.kv.session_eviction import SessionEviction
from inflight.core.kv.sessions import MAX_PAUSE_S, Session, SessionTable, session_key
from inflight.core.sequence import Sequence


class ActingSessions:
    def __init__(self, table: SessionTable, order: SessionEviction, num_blocks: int):
        """Look at none yet.

        Args:
            table: Of all sessions.
            order: Of the device's blocks.
            num_blocks: Of the device.
        """
        self._table, self._order, self._num_blocks = table, order, num_blocks
        table.watchers.append(self._value_changed)
        order.watchers.append(self._loses_blocks)
        self._is_current = False
        self._blocks: dict[Session, int] = {}  # of each acting session, the one that began first, first
        self._changed: set[Session] = set()  # those of these that have begun a turn or lost blocks since
        self._tenants: dict[str, _Sums] = {}
        self._totals: dict[int, _Sums] = {}  # of all tenants, by the blocks that each may keep at most

    def begin_plan(self) -> None:
        """Look at the sessions anew when the next call asks."""
        self._is_current = False

    def kept_blocks(self, sequence: Sequence) -> int:
        """Return the idle blocks that a waiting sequence must leave to sessions that act.

        Those are of sessions that began before its own, and of each other tenant no more than an equal share of all
        blocks. None once it has waited for MAX_PAUSE_S.
        """
        request, table = sequence.request, self._table
        if table.now - request.arrival > MAX_PAUSE_S:
            return 0
        if not self._is_current:
            self._look()
        own = table.known(session_key(request))
        began = request.arrival if own is None else own.began
        share = self._num_blocks // len(self._tenants.keys() | {request.tenant})
        subtracted = Counter({request.tenant: 0})  # also its own tenant's, which keeps more than a share
        for session in self._changed.union((own,) if own in self._blocks else ()):
            if session.began <= began:
                subtracted[session.tenant] += self._blocks[session]
                if session is not own and table.is_acting(session):
                    subtracted[session.tenant] -= self._order.num_idle_blocks(session)
        kept = self._total(share).until(began)
        for tenant, blocks in subtracted.items():
            held = self._tenants[tenant].until(began) if tenant in self._tenants else 0
            left = held - blocks
            kept += (left if tenant == request.tenant else min(left, share)) - min(held, share)
        return kept

    def _look(self) -> None:
        self._table.advance()
        self._is_current = True
        acting = sorted(self._table.acting(), key=lambda one: one.began)
        self._blocks = {session: self._order.num_idle_blocks(session) for session in acting}
        self._changed.clear()
        self._totals.clear()
        tenants: defaultdict[str, _Sums] = defaultdict(_Sums)
        for session, blocks in self._blocks.items():
            tenants[session.tenant].add(session.began, blocks)
        self._tenants = dict(tenants)

    def _total(self, share: int) -> _Sums:
        """Return the sums over all tenants where each keeps a share at most: one of two, as the tenant of a call has
        acting sessions or none."""
        total = self._totals.get(share)
        if total is None:
            total, held = _Sums(), Counter[str]()
            for session, blocks in self._blocks.items():
                before = held[session.tenant]
                held[session.tenant] += blocks
                total.add(session.began, min(before + blocks, share) - min(before, share))
            self._totals[share] = total
        return total

    def _value_changed(self, session: Session) -> None:
        if session.rests_since is not None:
            self._is_current = False  # it begins to rest, or has rested for longer
        else:
            self._loses_blocks(session)

    def _loses_blocks(self, session: Session) -> None:
        if self._is_current and session in self._blocks:
            self._changed.add(session)


class _Sums:
    """Sums of blocks over sessions that began until a time."""

    def __init__(self) -> None:
        self._times: list[float] = []
        self._sums = [0]

    def add(self, began: float, blocks: int) -> None:
        """Add a session that began no earlier than those before."""
        self._times.append(began)
        self._sums.append(self._sums[-1] + blocks)

    def until(self, began: float) -> int:
        return self._sums[bisect_right(self._times, began)]
