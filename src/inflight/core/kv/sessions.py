"""Sessions: the turns of conversations, recognised as their requests come, and the value of a cached block of each.

A client may name the session (`Request.session`), within its tenant and its cache salt. Without a name, a sequence that
continues all that is cached of a session is its next turn. `session_eviction` ranks the blocks of sessions.

The value of a block is learnt from the gaps between turns. A gap that has ended counts where it ended; an open one
counts as far as it was watched, so that sessions that never return count, too (the Kaplan-Meier estimate of survival).
The value is the best ratio, over all times that a block could be kept, of the chance that a turn comes within that time
to the mean time that it is kept. Compare hit density in LHD (Beckmann et al., NSDI 2018) and Belady's rule.
"""

from __future__ import annotations

import heapq
import math
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterator
from typing import Literal

from msgspec import Struct

MAX_NAMED = 20_000  # sessions that are remembered by name; the one that came longest ago is forgotten first
TURN_CLASSES = 4  # sessions with 1, 2 to 3, 4 to 7 and more turns have gaps of their own
KEEP_RATE = 0.05  # seconds of computing that keeping a resting session must save per second, to hold up newcomers
MAX_HELD_UP_S = 3600.0  # for which a newcomer is held up at most
COMPUTING_S = 1e-3  # a session that computes now is as valuable as one that is certain to return in so many seconds

Awaits = Literal["tool", "person", ""]  # what a session rests for; "": unknown
MIN_GAP_S, BUCKETS_PER_DOUBLING, NUM_BUCKETS = 0.25, 2, 40  # shorter gaps are alike; ages up to three days
DECAY_PER_GAP = 0.9995  # a gap has half its weight after about 1,400 others
PRIOR_TURNS = 1 / 16  # turns of each age before the first observation, of one gap that came so far
REFRESH_SHARE = 1 / 32  # hit rates are computed again when this share of all observations is new
MAX_WATCHED = 20_000
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


class ReuseGaps:
    """A histogram of gaps by age, in buckets that grow by √2."""

    def __init__(self) -> None:
        self._turns = [PRIOR_TURNS] * NUM_BUCKETS
        self._reached = [1.0] * NUM_BUCKETS
        self._hit_rates: list[float] = []  # by bucket; empty until they are computed
        self._num_new = 0  # observations since then
        self._num_observed = 1.0 * NUM_BUCKETS

    def outlast(self, index: int) -> None:
        """Count a gap that came to the end of a bucket without a turn in it."""
        self._reached[index] += 1
        self._num_new += 1
        self._num_observed += 1

    def end(self, age: float) -> None:
        """Count a turn that came after a gap of `age` seconds, which has outlasted all buckets before."""
        index = bucket(age)
        for counts in (self._turns, self._reached):
            counts[:] = [DECAY_PER_GAP * one for one in counts]
        self._turns[index] += 1
        self._reached[index] += 1
        self._num_new += 1
        self._num_observed = DECAY_PER_GAP * self._num_observed + 1

    def hit_rate(self, age: float) -> float:
        """Return the highest rate of turns, per second that blocks are kept, of a session that rests for `age` s."""
        if not self._hit_rates or self._num_new > REFRESH_SHARE * self._num_observed:
            self._hit_rates, self._num_new = [self._best_rate(index) for index in range(NUM_BUCKETS)], 0
        return self._hit_rates[bucket(age)]

    def _best_rate(self, first: int) -> float:
        survives, chance, waited, best = 1.0, 0.0, 0.0, 0.0
        for index in range(first, NUM_BUCKETS):
            hazard = min(1.0, self._turns[index] / self._reached[index])
            width = bucket_start(index + 1) - bucket_start(index)
            waited += survives * width * (1 - hazard / 2)
            chance += survives * hazard
            survives *= 1 - hazard
            best = max(best, chance / waited)
        return best


class GapWatch:
    """Report to `ReuseGaps` how far the gaps have come that have not ended.

    Each gap is watched from its start, whether or not anything of its session is left in memory: if it were counted at
    its end alone, every session would seem to return. A gap is dropped when its session could not be recognised again,
    and beyond MAX_WATCHED the oldest is; both depend on age alone, and so do not favour sessions that return.
    """

    def __init__(self, gaps_of: Callable[[Session], ReuseGaps], can_return: Callable[[Session], bool]):
        """gaps_of: returns the histogram that a session belongs to. can_return: whether it could be recognised."""
        self._gaps_of, self._can_return = gaps_of, can_return
        self._since: OrderedDict[Session, float] = OrderedDict()  # start of each gap, oldest first
        self._bucket_ends: list[tuple[float, int, int, Session, float]] = []  # heap: time, seq, bucket, …, start
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
        self._push(0, session, now)

    def stop(self, session: Session, now: float) -> None:
        """Count the gap of a session that has its next turn."""
        self.advance(now)
        since = self._since.pop(session, None)
        if since is not None:
            self._gaps_of(session).end(now - since)

    def advance(self, now: float) -> None:
        """Count the buckets that gaps have outlasted until now."""
        while self._bucket_ends and self._bucket_ends[0][0] < now:
            _, _, index, session, since = heapq.heappop(self._bucket_ends)
            if self._since.get(session) != since:
                continue
            if not self._can_return(session):
                del self._since[session]
                continue
            self._gaps_of(session).outlast(index)
            self._push(index + 1, session, since)

    def _push(self, index: int, session: Session, since: float) -> None:
        if index < NUM_BUCKETS - 1:
            self._seq += 1
            heapq.heappush(self._bucket_ends, (since + bucket_start(index + 1), self._seq, index, session, since))


def bucket(age: float) -> int:
    """Return the index of the bucket of a gap of `age` seconds."""
    if age <= MIN_GAP_S:
        return 0
    return min(NUM_BUCKETS - 1, 1 + int(BUCKETS_PER_DOUBLING * math.log2(age / MIN_GAP_S)))


def bucket_start(index: int) -> float:
    """Return the start of a bucket in seconds."""
    return 0.0 if index == 0 else MIN_GAP_S * 2 ** ((index - 1) / BUCKETS_PER_DOUBLING)


class SessionTable:
    def __init__(self, block_seconds: Callable[[int], float] = lambda tokens: 1.0, keeps: bool = False):
        """Begin without sessions.

        Args:
            block_seconds: Returns the seconds to compute one block again of a text with so many tokens.
            keeps: Whether sessions that rest for a moment hold up newcomers that lack blocks (`acting`).
        """
        self.keeps = keeps
        self.now = 0.0  # set before each plan and commit
        self.watchers = list[Callable[[Session], None]]()  # called once a session runs, and once it rests
        self._block_seconds = block_seconds
        self._named: OrderedDict[object, Session] = OrderedDict()
        self._gaps: defaultdict[tuple[Awaits, int], ReuseGaps] = defaultdict(ReuseGaps)
        self._watch: GapWatch
        self.reset()

    def __len__(self) -> int:
        return len(self._named)

    def reset(self) -> None:
        """Forget all sessions, after all sequences and blocks were dropped; histograms of gaps stay."""
        self.watchers.clear()
        self._named.clear()
        self._watch = GapWatch(self._gaps_of, lambda one: one.is_named or one.num_idle_blocks > 0)

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
            self._watch.start(session, self.now)
            self._notify(session)

    def block_value(self, session: Session) -> float:
        """Return the seconds of computing that a cached block of the session saves, per second that it is kept."""
        self._watch.advance(self.now)
        if session.rests_since is None:
            return session.block_cost / COMPUTING_S
        return session.block_cost * self._gaps_of(session).hit_rate(max(0.0, self.now - session.rests_since))

    def acting(self) -> Iterator[Session]:
        """Yield the named sessions that rest for a moment, as agents do while a tool runs: keeping them saves KEEP_RATE
        seconds of computing or more per second."""
        self._watch.advance(self.now)
        for session in self._watch.latest():
            age = self.now - (session.rests_since or 0.0)
            if age > MAX_ACTING_S:
                return
            seconds = session.block_cost * session.num_idle_blocks
            if session.is_named and seconds * self._gaps_of(session).hit_rate(age) >= KEEP_RATE:
                yield session

    def _notify(self, session: Session) -> None:
        for watcher in self.watchers:
            watcher(session)

    def _gaps_of(self, session: Session) -> ReuseGaps:
        return self._gaps[session.awaits, min(TURN_CLASSES - 1, session.turns.bit_length() - 1)]
