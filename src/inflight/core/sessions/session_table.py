"""Sessions: whose turns follow each other, how long each has rested, and what a block of it is worth.

A session is what a client names as one, within its tenant and its salt; where nothing is named, whoever goes on behind
the end of what a session left is its next turn. Knows turns, gaps and lengths; which blocks are a session's, and which
go first, `session_eviction` knows.
"""

from __future__ import annotations

from collections import OrderedDict, defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field

from inflight.core.sessions.gap_watch import GapWatch
from inflight.core.sessions.gaps import Gaps
from inflight.core.sessions.session import Awaits, Session

MOST_SESSIONS = 20_000  # that are remembered by name; those that came longest ago are forgotten
CLASSES = 4  # by turns: 1, 2 to 3, 4 to 7, more: whoever has come often comes again


@dataclass(slots=True)
class SessionTable:
    """block_seconds(tokens): to compute a block anew, of a text with so many."""

    block_seconds: Callable[[int], float] = lambda tokens: 1.0
    now: float = 0.0  # the time of what comes next
    _named: OrderedDict[object, Session] = field(default_factory=OrderedDict)
    _gaps: defaultdict[tuple[Awaits, int], Gaps] = field(default_factory=lambda: defaultdict(Gaps))
    _watch: GapWatch = field(init=False)

    def __post_init__(self) -> None:
        self._watch = GapWatch(self._gaps_like)

    def __len__(self) -> int:
        return len(self._named)

    def named(self, key: object, tenant: str) -> Session:
        """The session of this name, which may be a new one."""
        session = self._named.get(key)
        if session is None:
            session = self._named[key] = Session(tenant, is_named=True)
            if len(self._named) > MOST_SESSIONS:
                self._named.popitem(last=False)
        self._named.move_to_end(key)
        return session

    def begins(self, session: Session) -> None:
        """A turn of it runs."""
        if session.rests_since is not None:
            self._watch.returns(session, self.now)
            session.rests_since = None
        if not session.running:
            session.turns += 1
        session.running += 1

    def ends(self, session: Session, tokens: int, awaits: Awaits = "", answered: int = 0) -> None:
        """A turn of it has ended, with so many tokens in all, the last of which are the answer's."""
        session.running -= 1
        if tokens > session.tokens:
            session.tokens, session.answered = tokens, answered
        session.awaits = awaits
        if session.running <= 0:
            session.running, session.rests_since = 0, self.now
            session.cost = max(self.block_seconds(session.tokens), 1e-9)
            self._watch.rests(session, self.now)

    def worth(self, session: Session) -> float:
        """Of a block of it: the seconds of computing that it saves, for the seconds that it is kept."""
        self._watch.advance(self.now)
        if session.rests_since is None:
            return session.cost / 1e-3  # it is computing
        return session.cost * self._gaps_like(session).turns_per_second(max(0.0, self.now - session.rests_since))

    def _gaps_like(self, session: Session) -> Gaps:
        return self._gaps[session.awaits, min(CLASSES - 1, session.turns.bit_length() - 1)]
