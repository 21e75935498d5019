"""Sessions: whose turns follow each other, how long each has rested, and what a block of it is worth.

A session is what a client names as one, within its tenant and its salt; where nothing is named, whoever goes on behind
the end of what a session left is its next turn. Knows turns, gaps and lengths; which blocks are a session's, and which
go first, `session_eviction` knows.
"""

from __future__ import annotations

from collections import OrderedDict, defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

from inflight.core.sessions.gaps import Gaps

MOST_SESSIONS = 20_000  # that are remembered; those that rest longest are forgotten
CLASSES = 4  # by turns: 1, 2 to 3, 4 to 7, more: whoever has come often comes again

Awaits = Literal["tool", "person", ""]  # what a session rests for; "": nobody has said


@dataclass(slots=True, eq=False)
class Session:
    """tenant: whose. turns: so far. rests_since: when its last turn ended; None: a turn is under way. told: seconds of
    its gap that were told of. tokens: at the end of its last turn. running: sequences of it that are alive. awaits:
    after its last turn."""

    tenant: str
    turns: int = 0
    rests_since: float | None = None
    told: float = 0.0
    tokens: int = 0
    running: int = 0
    awaits: Awaits = ""
    cost: float = 1.0  # seconds to compute a block of it anew

    @property
    def kind(self) -> tuple[Awaits, int]:
        """Gaps of one kind are alike."""
        return self.awaits, min(CLASSES - 1, self.turns.bit_length() - 1)


@dataclass(slots=True)
class SessionTable:
    """block_seconds(tokens): to compute a block anew, of a text with so many."""

    block_seconds: Callable[[int], float] = lambda tokens: 1.0
    now: float = 0.0  # the time of what comes next
    _named: OrderedDict[object, Session] = field(default_factory=OrderedDict)
    _gaps: defaultdict[tuple[Awaits, int], Gaps] = field(default_factory=lambda: defaultdict(Gaps))

    def __len__(self) -> int:
        return len(self._named)

    def named(self, key: object, tenant: str) -> Session:
        """The session of this name, which may be a new one."""
        session = self._named.get(key)
        if session is None:
            session = self._named[key] = Session(tenant)
            if len(self._named) > MOST_SESSIONS:
                self._named.popitem(last=False)
        self._named.move_to_end(key)
        return session

    def begins(self, session: Session) -> None:
        """A turn of it runs."""
        if session.rests_since is not None:
            age = max(0.0, self.now - session.rests_since)
            self._tell(session, age)
            self._gaps[session.kind].ended(age)
            session.rests_since = None
        if not session.running:
            session.turns += 1
        session.running += 1

    def ends(self, session: Session, tokens: int, awaits: Awaits = "") -> None:
        """A turn of it has ended, with so many tokens in all."""
        session.running -= 1
        session.tokens = max(session.tokens, tokens)
        session.awaits = awaits
        if session.running <= 0:
            session.running, session.rests_since, session.told = 0, self.now, 0.0
            session.cost = max(self.block_seconds(session.tokens), 1e-9)

    def worth(self, session: Session) -> float:
        """Of a block of it: the seconds of computing that it saves, for the seconds that it is kept."""
        if session.rests_since is None:
            return session.cost / 1e-3  # it is computing
        age = max(0.0, self.now - session.rests_since)
        self._tell(session, age)
        return session.cost * self._gaps[session.kind].turns_per_second(age)

    def _tell(self, session: Session, age: float) -> None:
        if age > session.told:
            self._gaps[session.kind].reached(session.told, age)
            session.told = age
