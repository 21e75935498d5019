"""Which sessions rest, and how far their gaps have come: what is told to `Gaps` of those that have not ended.

Each gap is watched from its begin, whether or not anything of its session is left in memory: were it watched only for
so long, and counted when it ends, it would look as if everybody came back. Where a session could not be known again,
since it has no name and nothing of it is left, watching ends there, and where there are too many, with those that have
rested longest. Both are matters of age, so that who comes back does not depend on them.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict
from collections.abc import Callable

from inflight.core.sessions.gaps import BUCKETS, Gaps, begin_of
from inflight.core.sessions.session import Session

MOST_WATCHED = 20_000


class GapWatch:
    def __init__(self, gaps: Callable[[Session], Gaps]):
        """gaps(session): those that its own is like."""
        self._gaps = gaps
        self._watched: OrderedDict[Session, float] = OrderedDict()  # since when they rest, in that order
        self._next: list[tuple[float, int, int, Session, float]] = []  # a heap: when, a number, a bucket's end, of whom
        self._count = 0

    def __len__(self) -> int:
        return len(self._watched)

    def rests(self, session: Session, now: float) -> None:
        self._watched[session] = now
        self._watched.move_to_end(session)
        if len(self._watched) > MOST_WATCHED:
            self._watched.popitem(last=False)
        self._await(0, session, now)

    def returns(self, session: Session, now: float) -> None:
        """A turn of it runs."""
        self.advance(now)
        since = self._watched.pop(session, None)
        if since is not None:
            self._gaps(session).ended(now - since)

    def advance(self, now: float) -> None:
        """Tell of what gaps have outlasted until now."""
        while self._next and self._next[0][0] < now:
            _, _, at, session, since = heapq.heappop(self._next)
            if self._watched.get(session) != since:
                continue
            if not session.is_named and not session.resting:
                del self._watched[session]
                continue
            self._gaps(session).outlasts(at)
            self._await(at + 1, session, since)

    def _await(self, at: int, session: Session, since: float) -> None:
        if at < BUCKETS - 1:
            self._count += 1
            heapq.heappush(self._next, (since + begin_of(at + 1), self._count, at, session, since))
