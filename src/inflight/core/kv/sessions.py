"""Sessions: the turns of conversations, recognised as their requests come, and the value of a cached block of each.

A client may name the session (`Request.session`), within its tenant and its cache salt. Without a name, a sequence that
continues all that is cached of a session is its next turn. `session_eviction` ranks the blocks of sessions.

The value of a block follows from the gaps between turns, which `reuse` learns from. A gap that has ended counts where
it ended; an open one counts as far as it was watched, so that sessions that never return count, too.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import Literal
from zlib import crc32

from msgspec import Struct

from inflight.core.kv.reuse import NUM_BUCKETS, ReuseModel, bucket_start
from inflight.core.types.request import Request

MAX_NAMED = 20_000  # sessions that are remembered by name; the one that came longest ago is forgotten first
MAX_TURNS = 12  # sessions with more turns are alike
TENANT_CLASSES = 64  # of tenants, by a hash of their names
KEEP_RATE = 0.05  # seconds of computing per second that keeping a session must save, so that calls wait for it
MAX_PAUSE_S = 3600.0  # for which a call waits for acting sessions at most
COMPUTING_S = 1e-3  # a session that computes now is as valuable as one that is certain to return in so many seconds

Awaits = Literal["tool", "person", ""]  # what a session rests for; "": unknown
MAX_WATCHED = 20_000
MAX_COUNTED = 2048  # ends of buckets in one verb, so that after an idle hour the next plan does not wait for all
MAX_ACTING_S = 300.0  # longer rests are not looked at, so that a look takes a time bounded by the turns in them


class Session(Struct, eq=False):
    """One conversation.

    Attributes:
        tenant: Owner of the session.
        is_named: Whether the client named it.
        began: When its first request came, in seconds.
        turns: Turns so far.
        rests_since: End of its last turn, in seconds; None while a turn runs.
        num_tokens: Tokens at the end of its last turn; the last `num_answered` of them are the answer.
        running: Sequences of it that are alive.
        awaits: What it waits for since its last turn.
        num_idle_blocks: Blocks of its own that no sequence holds, on the device and on the host.
        block_cost: Seconds to compute a block of it again.
        traits: By which its gaps are learnt from, since its last turn.
        bucket: Bucket of ages that its gap has come to.
        hit_rates: Turns per second that a block is kept, by bucket, as expected at the end of its last turn.
    """

    tenant: str
    is_named: bool = False
    began: float = 0.0
    turns: int = 0
    rests_since: float | None = None
    num_tokens: int = 0
    num_answered: int = 0
    running: int = 0
    awaits: Awaits = ""
    num_idle_blocks: int = 0
    block_cost: float = 1.0
    traits: tuple[object, ...] = ()
    bucket: int = 0
    hit_rates: tuple[float, ...] = ()


def session_key(request: Request) -> tuple[str, str, str]:
    """Return the key of the session that a request names: a program's only one where it names none."""
    return request.tenant, request.cache_salt, request.session or request.program


class GapWatch:
    """Report to a `ReuseModel` how far the gaps have come that have not ended.

    Each gap is watched from its start, whether or not anything of its session is left in memory: if it were counted at
    its end alone, every session would seem to return. A gap is dropped when its session could not be recognised again,
    and beyond MAX_WATCHED the oldest is; both depend on age alone, and so do not favour sessions that return.
    """

    def __init__(
        self, model: ReuseModel, can_return: Callable[[Session], bool], on_age: Callable[[Session], None]
    ) -> None:
        """Watch no session yet.

        Args:
            model: Learns from each bucket that ends.
            can_return: Returns whether a session could be recognised.
            on_age: Called with each session whose gap has come to its next bucket.
        """
        self._model, self._can_return, self._on_age = model, can_return, on_age
        self._since: OrderedDict[Session, float] = OrderedDict()  # start of each gap, oldest first
        self._bucket_ends: list[tuple[float, int, Session, float]] = []  # heap: time, seq, …, start
        self._seq = 0

    def __len__(self) -> int:
        return len(self._since)

    def __contains__(self, session: Session) -> bool:
        return session in self._since

    def latest(self) -> Iterator[Session]:
        """Yield the sessions that rest, the one that rests for the shortest time first."""
        return reversed(self._since)

    def start(self, session: Session, now: float) -> None:
        """Watch a session that rests from now on."""
        self._since[session] = now
        self._since.move_to_end(session)
        if len(self._since) > MAX_WATCHED:
            self._since.popitem(last=False)
        session.bucket = 0
        self._push(session, now)

    def stop(self, session: Session, now: float) -> None:
        """Count the gap of a session that has its next turn."""
        self.advance(now)
        since = self._since.pop(session, None)
        if since is not None:
            self._model.observe(session.traits, session.bucket, came=True)

    def advance(self, now: float) -> None:
        """Count the buckets that gaps have outlasted until now, the oldest first, in a bounded time."""
        aged: dict[Session, None] = {}
        for _ in range(MAX_COUNTED):
            if not self._bucket_ends or self._bucket_ends[0][0] >= now:
                break
            _, _, session, since = heapq.heappop(self._bucket_ends)
            if self._since.get(session) != since:
                continue
            if not self._can_return(session):
                del self._since[session]
                continue
            self._model.observe(session.traits, session.bucket, came=False)
            session.bucket += 1
            self._push(session, since)
            aged[session] = None
        for session in aged:
            self._on_age(session)

    def _push(self, session: Session, since: float) -> None:
        if session.bucket < NUM_BUCKETS - 1:
            self._seq += 1
            heapq.heappush(self._bucket_ends, (since + bucket_start(session.bucket + 1), self._seq, session, since))


class SessionTable:
    def __init__(
        self,
        block_seconds: Callable[[int], float] = lambda tokens: 1.0,
        model: ReuseModel | None = None,
    ):
        """Begin without sessions.

        Args:
            block_seconds: Returns the seconds to compute one block again of a text with so many tokens.
            model: Learns how soon sessions come back; None: a `ReuseModel`.
        """
        self.now = 0.0  # set before each plan and commit
        self.watchers = list[Callable[[Session], None]]()  # called once a session's value has changed
        self._block_seconds = block_seconds
        self._named: OrderedDict[object, Session] = OrderedDict()
        self._model = model or ReuseModel()
        self._watch: GapWatch
        self.reset()

    def __len__(self) -> int:
        return len(self._named)

    def reset(self) -> None:
        """Forget all sessions, after all sequences and blocks were dropped; what was learnt of gaps stays."""
        self.watchers.clear()
        self._named.clear()
        self._watch = GapWatch(self._model, lambda one: one.is_named or one.num_idle_blocks > 0, self._notify)

    def known(self, key: object) -> Session | None:
        """Return the session of this name, if there is one."""
        return self._named.get(key)

    def named(self, key: object, tenant: str, arrival: float = 0.0) -> Session:
        """Return the session of this name; create it if there is none. arrival: of the request that names it."""
        session = self._named.get(key)
        if session is None:
            session = self._named[key] = Session(tenant, is_named=True, began=arrival)
            if len(self._named) > MAX_NAMED:
                self._named.popitem(last=False)
        self._named.move_to_end(key)
        return session

    def begin_turn(self, session: Session) -> None:
        if session.rests_since is not None:
            self._watch.stop(session, self.now)
            session.rests_since = None
            self._notify(session)
        if not session.running:
            session.turns += 1
        session.running += 1

    def end_turn(self, session: Session, num_tokens: int, awaits: Awaits = "", num_answered: int = 0) -> None:
        """End one sequence of the session's turn; the last `num_answered` of its tokens are the answer."""
        session.running -= 1
        if num_tokens > session.num_tokens:
            session.num_tokens, session.num_answered = num_tokens, num_answered
        session.awaits = awaits
        if session.running <= 0:
            session.running, session.rests_since = 0, self.now
            session.block_cost = max(self._block_seconds(session.num_tokens), 1e-9)
            session.traits = _traits(session, num_answered)
            session.hit_rates = self._model.rates(session.traits)
            self._watch.start(session, self.now)
            self._notify(session)

    def advance(self) -> None:
        """Learn from the gaps that have come to their next bucket by now, and notify of their sessions."""
        self._watch.advance(self.now)

    def block_value(self, session: Session) -> float:
        """Return the seconds of computing that a cached block of the session saves, per second that it is kept."""
        if session.rests_since is None:
            return session.block_cost / COMPUTING_S
        return session.block_cost * session.hit_rates[session.bucket]

    def acting(self) -> Iterator[Session]:
        """Yield the sessions that act."""
        for session in self._watch.latest():
            if self.now - (session.rests_since or 0.0) > MAX_ACTING_S:
                return
            if self.is_acting(session):
                yield session

    def is_acting(self, session: Session) -> bool:
        """Return whether a session is named and rests for a moment, as agents do while a tool runs: keeping it saves
        KEEP_RATE seconds of computing or more per second, as of the last `advance`."""
        if not session.is_named or session.rests_since is None:
            return False
        seconds = session.block_cost * session.num_idle_blocks
        return seconds * session.hit_rates[session.bucket] >= KEEP_RATE

    def _notify(self, session: Session) -> None:
        for watcher in self.watchers:
            watcher(session)


def _traits(session: Session, num_answered: int) -> tuple[object, ...]:
    """Return the traits of a session that begins to rest. Whose it is keeps a tenant whose sessions never return from
    lowering the value of others' as much."""
    return (
        (session.awaits, min(MAX_TURNS, session.turns)),
        ("answer", num_answered.bit_length()),
        ("tenant", crc32(session.tenant.encode("utf-8", "surrogatepass")) % TENANT_CLASSES),
    )
